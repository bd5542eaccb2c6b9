"""Sessions of the sidecar: limits on their number and memory, and which sessions are evicted first."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest

from speculant_graph.rpc.v1 import drafter_pb2 as pb
from support.server import (
    LOST,
    OK,
    Clock,
    LiveServer,
    Serve,
    graph_file,
    refusal,
    retry_delay_s,
    step_of,
)
from support.server import serving as serve

TEXT = [random.Random(5).randrange(50) for _ in range(400)]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def serving(tmp_path: Path, clock: Clock) -> Iterator[Serve]:
    graph_file(tmp_path / "small.pkl", TEXT)
    with ExitStack() as stack:
        yield lambda **settings: stack.enter_context(serve(tmp_path / "small.pkl", tmp_path, clock=clock, **settings))


def told(server: LiveServer, session_id: int, position: int, tokens: list[int], budget: int = 0) -> tuple[int, int]:
    """Send a step; return its status and the position expected next."""
    answer = server.drafter.Draft(step_of(session_id, tokens, position, budget))
    (status,), (next_position,) = answer.sequence_statuses, answer.next_positions
    return status, next_position


def ended(server: LiveServer) -> dict[str, int]:
    """Return how many sessions ended, by reason."""
    found = {}
    for name, value in server.metrics().items():
        if name.startswith("ended_sessions_total{") and value:
            found[name.split('"')[1]] = int(value)
    return found


def test_the_longest_idle_goes_first_and_busy_ones_never(serving: Serve, clock: Clock) -> None:
    server = serving(max_sessions=2, busy_s=3.0)
    server.open(1)
    clock.now_s += 1.0
    server.open(2)
    clock.now_s += 1.0
    told(server, 1, 0, [5])
    error = refusal(server.drafter.OpenSession, pb.OpenSessionRequest(session_id=3))
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert retry_delay_s(error) == pytest.approx(2.0)  # until session 2 has been idle for three seconds
    clock.now_s += 2.0
    server.open(3)
    assert told(server, 2, 0, [5]) == (LOST, 0)
    assert told(server, 1, 1, [5]) == (OK, 2)
    assert ended(server) == {"limit": 1}


def test_ids_are_not_shared_between_tenants(serving: Serve) -> None:
    server = serving()
    server.open(1, tenant="a")
    taken = pb.OpenSessionRequest(session_id=1, tenant="b")
    error = refusal(server.drafter.OpenSession, taken)
    assert (error.code(), "choose another" in error.details()) == (grpc.StatusCode.INVALID_ARGUMENT, True)
    server.close(1, "b")
    assert told(server, 1, 0, [4]) == (OK, 1)


def test_memory_for_sessions_has_a_limit(serving: Serve, clock: Clock) -> None:
    server = serving(max_session_memory=1_000_000, busy_s=1.0)
    opened = [server.open() for _ in range(8)]
    for session_id in opened[:5]:  # each of the session's 4096 tokens takes at least 28 bytes
        clock.now_s += 0.1
        assert told(server, session_id, 0, TEXT * 10) == (OK, 4_000)
    assert server.metrics()["session_bytes"] <= 1_000_000
    # All sessions are busy now, except the nearly empty ones. Those are evicted first, which frees too little.
    clock.now_s += 0.6
    error = refusal(server.drafter.Draft, step_of(opened[5], TEXT * 100))
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert 0.0 < (retry_delay_s(error) or 0.0) <= 1.0
    assert told(server, opened[5], 0, [1]) == (LOST, 0)
    clock.now_s += 1.0
    server.open(opened[5])
    assert told(server, opened[5], 0, TEXT * 25) == (OK, 10_000)
    assert told(server, opened[0], 0, [1]) == (LOST, 0)
    assert told(server, opened[4], 4_000, [1]) == (OK, 4_001)
    assert server.metrics()["session_bytes"] <= 1_000_000
    assert set(ended(server)) == {"memory"}


def test_a_sequence_that_makes_room_for_another_of_its_batch_is_lost_alone(serving: Serve) -> None:
    server = serving(max_session_memory=1_000_000, busy_s=0.0)
    first, second = server.open(), server.open()
    answer = server.drafter.Draft(
        pb.DraftRequest(
            session_ids=[first, second],
            context_lengths=[20_000, 20_000],
            context_tokens=TEXT * 100,
            node_budgets=[4, 4],
        )
    )
    assert list(answer.sequence_statuses) == [LOST, OK]
    assert list(answer.next_positions) == [0, 20_000]
    assert answer.draft_lengths[0] == 0
