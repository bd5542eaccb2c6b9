"""How a sidecar comes and goes, and what it tells of itself meanwhile."""

from __future__ import annotations

import itertools
import queue
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest
from loguru import logger

from speculant_drafter.server import DrafterServer
from speculant_graph.config import DraftConfig, ServerConfig
from speculant_graph.errors import ConfigError, GraphFileError
from speculant_graph.log import json_line
from speculant_graph.rpc.v1 import drafter_pb2 as pb
from support.server import (
    NOT_SERVING,
    PATIENCE_S,
    SERVICE,
    SERVING,
    LiveServer,
    code_of,
    connected,
    refusal,
    run_in_loop,
    serving,
    step_of,
)

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
Serve = Callable[..., LiveServer]


@pytest.fixture
def serve(graph_path: Path, tmp_path: Path) -> Iterator[Serve]:
    with ExitStack() as stack:
        yield lambda **settings: stack.enter_context(serving(graph_path, tmp_path, **settings))


class Requests:
    """Requests of a stream, given one by one."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[pb.StreamDraftRequest | None] = queue.SimpleQueue()
        self._ids = itertools.count()

    def send(self) -> None:
        """Send a step."""
        self._queue.put(pb.StreamDraftRequest(step_id=next(self._ids), draft=step_of(0, [1])))

    def end(self) -> None:
        """Send no more."""
        self._queue.put(None)

    def __iter__(self) -> Iterator[pb.StreamDraftRequest]:
        return iter(self._queue.get, None)


def test_a_stop_ends_streams_and_keeps_what_open_sessions_taught(serve: Serve, tmp_path: Path) -> None:
    settings = {"learned": tmp_path / "learned", "grace_s": 30.0, "draft": {"strategy": "tree"}}
    server = serve(**settings)
    text = [7, 7, 11, 13, 17, 7, 11, 13, 17, 19]
    session_id = server.open(learn=True)
    for start, end in ((0, 2), (2, len(text))):
        server.drafter.Draft(step_of(session_id, text[start:end], start))
    requests = Requests()
    stream = server.drafter.StreamDraft(iter(requests))
    requests.send()
    assert next(stream).step_id == 0
    server.stop()  # returns, and long before the time for running calls is over
    with pytest.raises(grpc.RpcError) as failure:
        next(stream)
    requests.end()
    assert failure.value.code() is UNAVAILABLE
    assert failure.value.details() == "the drafter is shutting down"
    assert code_of(server.drafter.Draft, step_of(0, [1])) is UNAVAILABLE
    assert not list(tmp_path.glob("*.sock"))

    again = serve(**settings)
    session_id = again.open()
    assert list(again.drafter.Draft(step_of(session_id, [7, 11, 13], 0, 1)).draft_tokens) == [17]


def test_a_stop_ends_busy_streams_between_two_steps(serve: Serve) -> None:
    server = serve(grace_s=30.0)
    is_busy = threading.Barrier(7)

    def ping_pong() -> tuple[grpc.StatusCode, bool]:
        """Send each step when the one before is answered; return the end, and whether all were."""
        num_answers = 0
        with connected(server.address) as wire:
            requests = Requests()
            stream = wire.drafter.StreamDraft(iter(requests))
            requests.send()
            try:
                for answer in stream:
                    assert answer.step_id == num_answers
                    num_answers += 1
                    if num_answers == 20:
                        is_busy.wait(PATIENCE_S)
                    requests.send()
            except grpc.RpcError as error:
                return error.code(), num_answers >= 20
            finally:
                requests.end()
        raise AssertionError("the stream ended well")

    with ThreadPoolExecutor(6) as pool:
        streams = [pool.submit(ping_pong) for _ in range(6)]
        is_busy.wait(PATIENCE_S)
        server.stop()
        assert [stream.result(PATIENCE_S) for stream in streams] == [(UNAVAILABLE, True)] * 6


def test_a_stop_tells_health_before_the_last_call_is_done(serve: Serve) -> None:
    server = serve(grace_s=30.0)
    changes = server.wire.watch_health(SERVICE)
    assert next(changes).status == SERVING
    stopping = threading.Thread(target=server.stop)
    stopping.start()
    assert next(changes).status == NOT_SERVING
    changes.cancel()  # the stop waits for it
    stopping.join(PATIENCE_S)
    assert not stopping.is_alive()


def test_a_second_server_is_refused_while_the_first_one_lives(serve: Serve, graph_path: Path, tmp_path: Path) -> None:
    server = serve()
    address = f"unix://{tmp_path}/drafter.sock"

    async def start_second() -> None:
        async with DrafterServer(ServerConfig(listen=address, graph=graph_path), DraftConfig()):
            pass

    with pytest.raises(ConfigError, match=r"another server answers on unix://.*; stop it, .* --server\.listen"):
        run_in_loop(start_second())
    server.drafter.Draft(step_of(0, [1]))
    server.stop()
    run_in_loop(start_second())


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("127.0.0.1:{taken}", "another program listens there; stop it"),
        ("192.0.2.1:5000", "it is no address of this machine"),
        ("nowhere.invalid:5000", "there is no host of this name"),
        ("unix://{folder}/file/drafter.sock", "exists; choose another path|directory; choose another path"),
    ],
)
@pytest.mark.parametrize("setting", ["listen", "admin_listen"])
def test_why_an_address_can_not_be_listened_on_is_said(
    graph_path: Path, tmp_path: Path, setting: str, address: str, reason: str
) -> None:
    (tmp_path / "file").touch()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        wanted = address.format(taken=taken.getsockname()[1], folder=tmp_path)
        addresses = {"listen": f"unix://{tmp_path}/drafter.sock", setting: wanted}

        async def start() -> None:
            async with DrafterServer(ServerConfig(graph=graph_path, **addresses), DraftConfig()):
                pass

        option = f"--server.{setting.replace('_', '-')}"
        with pytest.raises(ConfigError, match=rf"can't listen on {wanted}: .*({reason}).* with {option}$"):
            run_in_loop(start())


def test_of_two_that_start_at_the_same_time_one_serves(graph_path: Path, tmp_path: Path) -> None:
    async def race() -> list[object]:
        import asyncio

        config = ServerConfig(listen=f"unix://{tmp_path}/drafter.sock", graph=graph_path)
        servers = [DrafterServer(config, DraftConfig()) for _ in range(3)]
        results = await asyncio.gather(*(server.start() for server in servers), return_exceptions=True)
        for server, result in zip(servers, results, strict=True):
            if result is not None:  # the refused ones stop first, and must leave the socket alone
                await server.stop()
        async with grpc.aio.insecure_channel(config.listen) as channel:
            call = channel.unary_unary(f"/{SERVICE}/Draft")
            await call(step_of(0, [1]).SerializeToString(), timeout=PATIENCE_S)
        for server, result in zip(servers, results, strict=True):
            if result is None:
                await server.stop()
        return results

    results = run_in_loop(race())
    assert sum(result is None for result in results) == 1
    assert sum(isinstance(result, ConfigError) for result in results) == 2


def test_the_socket_of_a_killed_server_is_replaced(serve: Serve, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(tmp_path / "drafter.sock"))
    serve().drafter.Draft(step_of(0, [1]))


def test_sockets_and_their_folder_are_private(serve: Serve, tmp_path: Path) -> None:
    serve(listen=f"unix://{tmp_path}/new folder/drafter.sock").drafter.Draft(step_of(0, [1]))
    assert (tmp_path / "new folder").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "new folder" / "drafter.sock").stat().st_mode & 0o077 == 0


def test_what_is_no_socket_is_left_alone(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "drafter.sock").write_text("mine", encoding="utf-8")
    with pytest.raises(ConfigError, match="is not a socket"):
        serve()
    assert (tmp_path / "drafter.sock").read_text(encoding="utf-8") == "mine"


def test_a_graph_that_can_not_be_loaded_leaves_nothing_behind(tmp_path: Path) -> None:
    async def start() -> None:
        config = ServerConfig(
            listen=f"unix://{tmp_path}/drafter.sock", graph=tmp_path / "missing.pkl", learned=tmp_path / "learned"
        )
        async with DrafterServer(config, DraftConfig()):
            pass

    with pytest.raises(GraphFileError, match=r"missing\.pkl"):
        run_in_loop(start())
    assert not list(tmp_path.glob("*.sock"))


def test_several_addresses_are_one_server(serve: Serve, tmp_path: Path) -> None:
    server = serve(listen=f"unix://{tmp_path}/drafter.sock,127.0.0.1:0, [::1]:0")
    session_id = server.open()
    for position, address in enumerate(server.server.addresses):
        with connected(address) as wire:
            answer = wire.drafter.Draft(step_of(session_id, [1], position))
            assert list(answer.next_positions) == [position + 1]


def test_a_taken_port_is_refused(serve: Serve, graph_path: Path) -> None:
    server = serve(listen="127.0.0.1:0")

    async def start_second() -> None:
        async with DrafterServer(ServerConfig(listen=server.address, graph=graph_path), DraftConfig()):
            pass

    with pytest.raises(ConfigError, match="choose another"):
        run_in_loop(start_second())


def test_metrics_and_health_over_http(serve: Serve) -> None:
    server = serve()
    url = f"http://{server.server.metrics_address}/healthz"
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as response:
        assert (response.status, response.read()) == (200, b"ok\n")
    before = server.metrics()
    session_id = server.open(learn=True)
    for position in range(3):
        server.drafter.Draft(step_of(session_id, [1, 1], 2 * position))
    list(server.drafter.StreamDraft(iter([pb.StreamDraftRequest(draft=step_of(0, [1]))] * 2)))
    list(server.drafter.StreamDraft(iter([pb.StreamDraftRequest(draft=pb.DraftRequest(context_lengths=[9]))])))
    code_of(server.drafter.Draft, step_of(0, [1], graph="nowhere"))
    assert server.metrics()["session_bytes"] > 0
    server.close(session_id)
    after = server.metrics()
    moved = {name: after[name] - before.get(name, 0) for name in after}
    for name, change in {
        "steps_total": 5,
        "sequences_total": 5,
        "step_seconds_count": 5,
        "opened_sessions_total": 1,
        'ended_sessions_total{reason="closed"}': 1,
        'failed_steps_total{code="INVALID_ARGUMENT"}': 1,
        'failed_steps_total{code="NOT_FOUND"}': 1,
        'open_sessions{graph="small"}': 0,
        "session_bytes": 0,
    }.items():
        assert moved[name] == change, name
    assert moved["drafted_nodes_total"] > 0
    assert moved["learned_tokens"] > 0
    assert after['graph_generation{graph="small"}'] == 1
    server.admin.ReloadGraph(pb.ReloadGraphRequest(name="small"))
    assert server.metrics()['graph_generation{graph="small"}'] == 2
    server.stop()
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(url, timeout=PATIENCE_S)


def test_a_request_id_comes_back_and_stands_in_messages(serve: Serve) -> None:
    server = serve()
    lines: list[str] = []
    logger.enable("speculant_graph")
    sink = logger.add(lambda message: lines.append(json_line(message.record)), level="DEBUG", format="")
    try:
        with connected(server.address, ("x-request-id", "mine-1")) as wire:
            _, call = wire.drafter.Draft.with_call(step_of(0, [1]))
            assert ("x-request-id", "mine-1") in call.trailing_metadata()
            error = refusal(wire.drafter.Draft, step_of(0, [1], graph="nowhere"))
            assert ("x-request-id", "mine-1") in error.trailing_metadata()
            stream = wire.drafter.StreamDraft(iter([pb.StreamDraftRequest(draft=step_of(0, [1]))]))
            assert len(list(stream)) == 1
            assert ("x-request-id", "mine-1") in stream.trailing_metadata()
        with connected(server.address, ("x-request-id", "not a sane id")) as wire:
            _, call = wire.drafter.Draft.with_call(step_of(0, [1]))
            (given,) = [value for key, value in call.trailing_metadata() if key == "x-request-id"]
            assert len(given) == 16
    finally:
        logger.remove(sink)
        logger.disable("speculant_graph")
    (line,) = [line for line in lines if "NOT_FOUND" in line]
    assert '"request_id": "mine-1"' in line
    assert '"method": "Draft"' in line


def test_failures_of_our_own_are_told_without_their_text(serve: Serve) -> None:
    server = serve()

    def fail(*_: object) -> bytes:
        raise RuntimeError("/secret/path of the server")

    server.server._service._steps._answer = fail  # type: ignore[method-assign]
    error = refusal(server.drafter.Draft, step_of(0, [1]))
    assert error.code() is grpc.StatusCode.INTERNAL
    assert error.details() == "the server failed on this request; its log says why"
    (answer,) = server.drafter.StreamDraft(iter([pb.StreamDraftRequest(step_id=1, draft=step_of(0, [1]))]))
    assert (answer.error.code, answer.error.message) == (13, error.details())
    assert server.metrics()['failed_steps_total{code="INTERNAL"}'] == 2
