"""Work on messages and sessions takes time proportional to their size or number, not to its square."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from speculant_graph._core import SessionTable, StepHandler
from speculant_graph.draft.learning.learned_store import LearnedStore
from speculant_graph.draft.session_drafter import SessionDrafter
from speculant_graph.rpc import convert
from speculant_graph.types import DraftOptions
from support.graphs import graph_of
from support.step_values import SequenceRequest, StepRequest, encode_step

MIB = 1 << 20
GENEROUS = 4  # allowed factor over proportional time


def growth(work: Callable[[int], Callable[[], object]], small: int, large: int) -> float:
    """Return the ratio of processor times of the large and the small work, divided by the ratio of their sizes."""
    shortest = []
    for size in (small, large):
        call, times = work(size), []
        for _ in range(5):
            start = time.thread_time_ns()
            call()
            times.append(time.thread_time_ns() - start)
        shortest.append(min(times))
    return shortest[1] / shortest[0] / (large / small)


def sessions_of(size: int) -> SessionTable:
    """Return a table of ``size`` sessions; session n was last used at nanosecond n."""
    drafter = SessionDrafter(None)
    memory = LearnedStore(0).memory("")
    table = SessionTable(max_sessions=size, max_bytes=1 << 40, idle_timeout_ns=size, busy_ns=0)
    for number in range(1, size + 1):
        table.open(number, drafter.core, 1, "", memory.core, False, number)
    return table


@pytest.mark.slow
@pytest.mark.parametrize("run", [b"\x12\x01\x00", b"\x1a\x01\x00", b"\x12\x01\x00\x1a\x01\x00"])
def test_an_answer_in_many_runs_is_read_in_one_go(run: bytes) -> None:
    def work(size: int) -> Callable[[], object]:
        payload = run * (size // len(run))
        return lambda: convert.read_answer_step_id(payload)

    assert growth(work, MIB // 16, MIB) < GENEROUS


@pytest.mark.slow
def test_an_answer_of_many_distributions_is_written_in_one_go() -> None:
    vocabulary_size = 64
    text = [(index * index + index // 64) % vocabulary_size for index in range(20_000)]
    drafter = SessionDrafter(graph_of([text], 1, vocabulary_size), read_options=convert.decode_options)
    answerer = StepHandler(
        sessions_of(1),
        check_options=bytes,
        graph_of=lambda name, principal: (drafter.core, 1),
        default_generation=lambda: 1,
        max_sequences=1 << 20,
        max_tokens=1 << 20,
        max_nodes=2_048,
        max_step_nodes=1 << 20,
        max_message_bytes=1 << 30,
        budget=8,
    )
    options = DraftOptions("sampling", max_candidates=16)

    def work(size: int) -> Callable[[], object]:
        sequences = tuple(SequenceRequest((number % vocabulary_size,), node_budget=32) for number in range(size))
        payload = encode_step(None, StepRequest(sequences, options))
        return lambda: answerer.answer(payload, False, None, 1, 0, None)

    assert growth(work, 32, 512) < GENEROUS


@pytest.mark.slow
def test_a_sweep_looks_at_the_idle_sessions_alone() -> None:
    def work(size: int) -> Callable[[], object]:
        table = sessions_of(size)

        def sweep() -> None:
            for _ in range(200):
                table.sweep(size)

        return sweep

    assert growth(work, 100, 10_000) < 0.1


def test_a_sweep_ends_those_that_were_not_used() -> None:
    table = sessions_of(20)
    assert table.use(3, 20)
    table.sweep(30)
    assert [number for number, reason, _ in table.take_ended() if reason == "idle"] == [1, 2, *range(4, 10)]
    assert len(table) == 12
