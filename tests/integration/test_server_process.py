"""Sidecars as processes: signals, kills, and their logs."""

from __future__ import annotations

import itertools
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from speculant_graph.rpc.v1 import drafter_pb2 as pb
from speculant_graph.types import Fingerprint
from support.access import access_file, entry
from support.http_api import wait_until
from support.learned import loaded, opened
from support.processes import Sidecar, launch, wait_until_ready
from support.server import OK, Wire, code_of, connected, graph_file, step_of

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
Run = Callable[..., Sidecar]


def taught(wire: Wire, text: list[int], tenant: str = "") -> int:
    """Open a session with ``learn``, send a text, and leave the session open."""
    session_id = wire.open(tenant=tenant, learn=True)
    for start, end in ((0, 1), (1, len(text))):
        answer = wire.drafter.Draft(step_of(session_id, text[start:end], start))
        assert list(answer.sequence_statuses) == [OK]
    return session_id


def following(wire: Wire, context: list[int], tenant: str = "") -> list[int]:
    """Return the token drafted after a context that only learned text contains."""
    session_id = wire.open(tenant=tenant)
    answer = wire.drafter.Draft(step_of(session_id, context, 0, 1, pb.STRATEGY_TREE))
    wire.close(session_id, tenant)
    return list(answer.draft_tokens)


def test_sigterm_keeps_what_open_sessions_taught_and_ends_with_status_0(run_sidecar: Run, tmp_path: Path) -> None:
    settings = {"learned": tmp_path / "learned", "draft": {"strategy": "tree"}}
    sidecar = run_sidecar(**settings)
    with connected(sidecar.address) as wire:
        taught(wire, [3, 9, 14, 22, 31] * 3)
        answers = wire.drafter.StreamDraft(iter_slowly())
        assert next(answers).step_id == 0
        sidecar.signal(signal.SIGTERM)
        with pytest.raises(grpc.RpcError) as failure:
            list(answers)
        assert failure.value.code() is UNAVAILABLE
        assert sidecar.wait() == 0
        assert not Path(sidecar.address.removeprefix("unix://")).exists()
        assert code_of(wire.drafter.Draft, step_of(0, [1])) is UNAVAILABLE
    with connected(run_sidecar(**settings).address) as wire:
        assert following(wire, [9, 14, 22]) == [31]


def iter_slowly() -> Iterator[pb.StreamDraftRequest]:
    yield pb.StreamDraftRequest(step_id=0, draft=step_of(0, [1]))
    time.sleep(5.0)  # a client that keeps its stream open but sends nothing


def test_ctrl_c_ends_it_too_and_while_it_starts(graph_path: Path, tmp_path: Path, run_sidecar: Run) -> None:
    sidecar = run_sidecar()
    sidecar.signal(signal.SIGINT)
    assert sidecar.wait() == 0
    starting = launch(graph_path, tmp_path / "drafter.sock")
    wait_until(lambda: (tmp_path / "drafter.sock").exists() or starting.process.poll() is not None)
    starting.signal(signal.SIGTERM)
    assert starting.wait() == 0, starting.log
    assert not (tmp_path / "drafter.sock").exists()


def test_sighup_reads_graph_and_access_file_again(tmp_path: Path) -> None:
    def write_access(token: str) -> None:
        access_file(tmp_path / "access.toml", entry("one", token))

    graph_file(tmp_path / "graph.pkl", [1, 2, 2] * 8)
    write_access("old")
    settings = {"access": {"file": tmp_path / "access.toml"}, "draft": {"strategy": "greedy"}}
    sidecar = launch(tmp_path / "graph.pkl", tmp_path / "drafter.sock", **settings)
    try:
        wait_until_ready(sidecar)
        with (
            connected(sidecar.address, token="old") as old,
            connected(sidecar.address, token="new") as new,
        ):
            session_id = old.open()
            assert old.drafter.Draft(step_of(session_id, [1], 0, 1)).draft_tokens[0] == 2
            assert code_of(new.drafter.Draft, step_of(0, [1])) is grpc.StatusCode.UNAUTHENTICATED
            graph_file(tmp_path / "graph.pkl", [1, 3, 3] * 8)
            write_access("new")
            sidecar.signal(signal.SIGHUP)
            wait_until(lambda: "generation 2" in sidecar.log)
            answer = new.drafter.Draft(step_of(0, [1], 0, 1))
            assert (list(answer.draft_tokens), answer.graph_generation) == ([3], 2)
            answer = new.drafter.Draft(step_of(session_id, [1], 1, 1))
            assert (list(answer.draft_tokens), answer.graph_generation) == ([2], 1)
            assert code_of(old.drafter.Draft, step_of(0, [1])) is grpc.StatusCode.UNAUTHENTICATED
            (tmp_path / "new.pkl").write_bytes(b"nothing")
            (tmp_path / "new.pkl").replace(tmp_path / "graph.pkl")  # a mapped file must not be overwritten in place
            (tmp_path / "access.toml").write_text("nothing", encoding="utf-8")
            sidecar.signal(signal.SIGHUP)
            wait_until(lambda: "graph graph is not reloaded" in sidecar.log)
            assert "the access file is not reloaded" in sidecar.log
            assert list(new.drafter.Draft(step_of(0, [1], 0, 1)).draft_tokens) == [3]
        assert sidecar.stop() == 0
    finally:
        sidecar.process.kill()
        sidecar.wait()


def test_a_learning_server_that_is_killed_loses_open_sessions_alone(tmp_path: Path) -> None:
    """Sessions closed before the last save are kept, and the folder stays usable, at any time of the kill."""
    vocabulary_size = 1_000_000
    graph = graph_file(tmp_path / "graph.pkl", [1, 2, 2] * 8, vocabulary_size)
    generator = random.Random(11)
    numbers = itertools.count(3)
    learned = tmp_path / "learned"
    settings = {"learned": learned, "draft": {"strategy": "tree"}}
    texts: list[list[int]] = []
    for turn in range(5):
        sidecar = launch(graph, tmp_path / "drafter.sock", **settings)
        try:
            wait_until_ready(sidecar)
            with connected(sidecar.address) as wire:
                for number, text in enumerate(texts):  # texts of all earlier turns
                    assert following(wire, text[:3], "a") == [text[3]], (turn, number)
                told_at_s: list[tuple[float, list[int]]] = []
                ends_at_s = time.monotonic() + generator.uniform(0.2, 0.6)
                while time.monotonic() < ends_at_s:
                    text = list(itertools.islice(numbers, 12))  # unique tokens
                    wire.close(taught(wire, text, "a"), "a")
                    told_at_s.append((time.monotonic(), text))
                taught(wire, list(itertools.islice(numbers, 12)), "a")  # stays open
                sidecar.kill()
                texts += [text for at_s, text in told_at_s if at_s < ends_at_s - 0.15][-4:]
        finally:
            sidecar.process.kill()
            sidecar.wait()
        tokenizer = Fingerprint("tests/alphabet", "ab" * 32, vocabulary_size)
        with opened(learned / "graph", 1_000_000, tokenizer) as files:
            kept = loaded(files, "a")
        assert all(any(text[1:] == document[-11:] for document in kept) for text in texts), turn
    assert len(texts) > 5
