"""The life cycle of a sidecar: start, stop, health, metrics and request ids."""

from __future__ import annotations

import itertools
import queue
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from speculant_graph.rpc.v1 import drafter_pb2 as pb
from support.server import (
    NOT_SERVING,
    PATIENCE_S,
    SERVICE,
    SERVING,
    Serve,
    code_of,
    connected,
    refusal,
    step_of,
)

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


class Requests:
    """Requests of a stream, sent one by one."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[pb.StreamDraftRequest | None] = queue.SimpleQueue()
        self._ids = itertools.count()

    def send(self) -> None:
        """Send a step."""
        self._queue.put(pb.StreamDraftRequest(step_id=next(self._ids), draft=step_of(0, [1])))

    def end(self) -> None:
        """End the stream of requests."""
        self._queue.put(None)

    def __iter__(self) -> Iterator[pb.StreamDraftRequest]:
        return iter(self._queue.get, None)


def test_a_stop_ends_busy_streams_between_two_steps(serve: Serve) -> None:
    server = serve()
    is_busy = threading.Barrier(7)

    def ping_pong() -> tuple[grpc.StatusCode, bool]:
        """Send each step after the previous response; return the final status, and whether 20 steps were answered."""
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
    server = serve()
    changes = server.wire.watch_health(SERVICE)
    assert next(changes).status == SERVING
    stopping = threading.Thread(target=server.stop)
    stopping.start()
    assert next(changes).status == NOT_SERVING
    changes.cancel()  # the stop waits for it
    stopping.join(PATIENCE_S)
    assert not stopping.is_alive()


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
    assert moved["steps_total"] == moved["sequences_total"] == moved["step_seconds_count"] == 5
    assert moved['ended_sessions_total{reason="closed"}'] == moved['failed_steps_total{code="NOT_FOUND"}'] == 1
    assert moved["session_bytes"] == moved['open_sessions{graph="small"}'] == 0
    assert min(moved["drafted_nodes_total"], moved["learned_tokens"]) > 0
    server.admin.ReloadGraph(pb.ReloadGraphRequest(name="small"))
    assert server.metrics()['graph_generation{graph="small"}'] == 2
    server.stop()
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(url, timeout=PATIENCE_S)


def test_a_request_id_comes_back(serve: Serve) -> None:
    server = serve()
    with connected(server.address, ("x-request-id", "mine-1")) as wire:
        _, call = wire.drafter.Draft.with_call(step_of(0, [1]))
        error = refusal(wire.drafter.Draft, step_of(0, [1], graph="nowhere"))
        stream = wire.drafter.StreamDraft(iter([pb.StreamDraftRequest(draft=step_of(0, [1]))]))
        assert len(list(stream)) == 1
        assert all(("x-request-id", "mine-1") in each.trailing_metadata() for each in (call, error, stream))
    with connected(server.address, ("x-request-id", "not a sane id")) as wire:
        _, call = wire.drafter.Draft.with_call(step_of(0, [1]))
        (given,) = [value for key, value in call.trailing_metadata() if key == "x-request-id"]
        assert len(given) == 16


def test_failures_of_our_own_are_told_without_their_text(serve: Serve) -> None:
    server = serve()

    def fail(*_: object) -> bytes:
        raise RuntimeError("/secret/path of the server")

    server.server._service._answer = fail  # type: ignore[method-assign]
    error = refusal(server.drafter.Draft, step_of(0, [1]))
    assert error.code() is grpc.StatusCode.INTERNAL
    assert error.details() == "the server failed on this request; its log says why"
    (answer,) = server.drafter.StreamDraft(iter([pb.StreamDraftRequest(step_id=1, draft=step_of(0, [1]))]))
    assert (answer.error.code, answer.error.message) == (13, error.details())
    assert server.metrics()['failed_steps_total{code="INTERNAL"}'] == 2
