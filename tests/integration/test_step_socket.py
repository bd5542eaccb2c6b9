"""Steps over a sidecar's step socket: the same results as over gRPC, and arbitrary input from clients."""

from __future__ import annotations

import os
import random
import socket
import stat
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculant_graph.client.step_streams import GrpcStream, SocketStream
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.rpc.step_frames import FrameReader, framed
from speculant_graph.rpc.v1 import drafter_pb2 as pb
from support.access import access_file, entry
from support.clients import make_client, make_steps, tokens
from support.server import LiveServer, Serve, run_in_loop, step_of

PATIENCE_S = 10.0


def connect(server: LiveServer) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(PATIENCE_S)
    connection.connect(server.address.removeprefix("unix://") + ".steps")
    return connection


def received(connection: socket.socket, count: int) -> list[bytes]:
    """Return ``count`` responses; fewer if the server disconnects."""
    reader, answers = FrameReader(1 << 20), list[bytes]()
    while len(answers) < count and (data := connection.recv(1 << 16)):
        answers += reader.feed(data)
    return answers


@given(payloads=st.lists(st.binary(max_size=40), max_size=6), seed=st.integers(0, 1 << 30))
def test_messages_come_whole_however_they_are_cut(payloads: list[bytes], seed: int) -> None:
    chance, data = random.Random(seed), b"".join(map(framed, payloads))
    cuts = sorted(chance.randint(0, len(data)) for _ in range(5))
    reader = FrameReader(40)
    found = [each for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True) for each in reader.feed(data[a:b])]
    assert found == payloads


def test_a_client_uses_it_and_gets_the_drafts_of_grpc(serve: Serve, small_graph: NgramGraph) -> None:
    server, steps = serve(), make_steps(small_graph, 8)
    with make_client(server.address) as quick, make_client(server.address) as slow:
        slow._socket_path = None
        assert tokens(quick.draft(steps)) == tokens(slow.draft(steps)) != [()] * 8
        assert isinstance(quick._stream, SocketStream)
        assert isinstance(slow._stream, GrpcStream)


def test_answers_are_those_of_grpc(serve: Serve, small_graph: NgramGraph) -> None:
    server = serve()
    [step] = make_steps(small_graph)
    good = [step_of(tokens=step.token_ids, budget=budget, strategy=1) for budget in (0, 1, 6)]
    bad = [step_of(tokens=step.token_ids, graph="none"), step_of(budget=1 << 30), pb.DraftRequest(session_ids=[1, 2])]
    requests = [pb.StreamDraftRequest(step_id=number, draft=each) for number, each in enumerate([*good, *bad], 1)]
    with connect(server) as connection:
        connection.sendall(b"".join(framed(each.SerializeToString()) for each in requests))
        quick = [pb.StreamDraftResponse.FromString(each) for each in received(connection, len(requests))]
    slow = list(server.drafter.StreamDraft(iter(requests)))
    for each in (*quick, *slow):
        if each.HasField("draft"):
            each.draft.ClearField("draft_id")
            each.draft.ClearField("server_time")
    assert quick == slow
    assert [each.HasField("error") for each in quick] == [False] * 3 + [True] * 3


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff\xff",
        (1 << 30).to_bytes(4, "little") + b"x",
        framed(b"\xff\xff no message"),
        framed(b"\xff\xff") * 3,
    ],
)
def test_who_sends_nonsense_disturbs_nobody(
    serve: Serve, small_graph: NgramGraph, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    server, steps = serve(), make_steps(small_graph)
    with make_client(server.address) as client, connect(server) as connection:
        before = tokens(client.draft(steps))
        connection.sendall(data)
        assert received(connection, 1) == []  # disconnected
        assert tokens(client.draft(steps)) == before
    assert not caplog.records  # no errors of the event loop


def test_many_steps_at_once_are_answered_in_order_and_hold_up_nobody(serve: Serve, small_graph: NgramGraph) -> None:
    server, steps = serve(), make_steps(small_graph)
    requests = [
        pb.StreamDraftRequest(step_id=number, draft=step_of(tokens=[1, 2], budget=4)) for number in range(1, 3_001)
    ]
    data = b"".join(framed(each.SerializeToString()) for each in requests)
    with make_client(server.address) as client, connect(server) as connection:
        sender = threading.Thread(target=connection.sendall, args=(data,))
        sender.start()  # the answers are not read yet
        assert all(client.draft(steps))
        answers = [pb.StreamDraftResponse.FromString(each) for each in received(connection, len(requests))]
        sender.join()
    assert [each.step_id for each in answers] == [each.step_id for each in requests]


def test_what_is_no_socket_is_left_alone(serve: Serve, small_graph: NgramGraph, tmp_path: Path) -> None:
    file = tmp_path / "drafter.sock.steps"
    file.write_text("mine")
    server = serve()
    with make_client(server.address) as client:
        assert all(client.draft(make_steps(small_graph)))
        assert isinstance(client._stream, GrpcStream)
    server.stop()
    assert file.read_text() == "mine"


def test_only_so_many_connections_are_taken(serve: Serve) -> None:
    server = serve(max_calls=2)
    taken = [connect(server) for _ in range(3)]
    assert taken[2].recv(1) == b""
    for each in taken:
        each.close()


def test_only_its_user_may_connect_and_it_goes_with_its_server(serve: Serve) -> None:
    server = serve()
    path = Path(server.address.removeprefix("unix://") + ".steps")
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    server.stop()
    assert not path.exists()


def test_where_keys_are_asked_for_steps_go_over_grpc(serve: Serve, small_graph: NgramGraph, tmp_path: Path) -> None:
    file = access_file(tmp_path / "access.toml", entry("one", "key", 'tenants = "*"'))
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(tmp_path / "drafter.sock.steps"))
    server = serve(file=file, client={"token": "key"})
    assert not Path(server.address.removeprefix("unix://") + ".steps").exists()
    with make_client(server.address, token="key") as client:
        assert all(client.draft(make_steps(small_graph)))
        assert isinstance(client._stream, GrpcStream)


def test_a_policy_that_is_read_later_holds_for_connections_that_are_open(
    serve: Serve, small_graph: NgramGraph, tmp_path: Path
) -> None:
    server, steps = serve(), make_steps(small_graph)
    with make_client(server.address) as client:
        assert all(client.draft(steps))
        server.server._access = server.server._access.model_copy(
            update={"file": access_file(tmp_path / "access.toml", entry("one", "key", 'tenants = "*"'))}
        )
        run_in_loop(server.server.reload())
        assert not any(client.draft(steps))
        assert not Path(server.address.removeprefix("unix://") + ".steps").exists()


def test_a_stranger_at_the_step_socket_gets_nothing(tmp_path: Path) -> None:
    """The listener's user must own the sidecar's socket; here, the socket belongs to another user."""
    ours, theirs = tmp_path / "ours.sock", tmp_path / "theirs.sock"
    ours.touch()
    if os.getuid():
        theirs.symlink_to("/")  # owned by root
    else:
        theirs.touch()
        os.chown(theirs, 65_534, -1)
    for path in (ours, theirs):
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"{path}.steps")
            listener.listen()
            if path is theirs:
                with pytest.raises(PermissionError):
                    SocketStream(path, print, print)
            else:
                SocketStream(path, print, print).close()


def test_a_server_that_stops_answers_what_it_took_and_disconnects(serve: Serve) -> None:
    server = serve()
    request = pb.StreamDraftRequest(step_id=1, draft=step_of(tokens=[1, 2], budget=4))
    with connect(server) as connection:
        connection.sendall(framed(request.SerializeToString()) * 50)
        assert len(received(connection, 1)) >= 1
        server.stop()
        received(connection, 50)
        assert connection.recv(1) == b""
