"""Locks of the core: long work releases them between short parts, to waiting threads first, in any mix of threads."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculant_graph import _core
from speculant_graph.draft.options import DraftOptions
from speculant_graph.draft.session_drafter import MAX_NODES, SessionDrafter
from speculant_graph.strategies import NGRAM_STRATEGIES
from support.graphs import graph_of
from support.sessions import draft_of, drafter_of, started, values_of
from support.step_values import SequenceRequest, StepRequest, encode_step

VOCABULARY_SIZE = 40
TEXT = np.random.default_rng(0).integers(0, VOCABULARY_SIZE, 50_000)
MOST_TAKEN, MOST_LEARNED, MOST_EXPANDED = 1_024, 32, 64


@contextmanager
def recorded() -> Iterator[Callable[[], dict[str, int]]]:
    """Yield a function that returns the number of acquisitions per kind of lock, and resets it."""
    _core.record_lock_holds(True)
    try:
        _core.take_lock_holds()
        yield lambda: {kind: count for kind, (count, _) in _core.take_lock_holds().items()}
    finally:
        _core.record_lock_holds(False)


def fewest(counts: dict[str, int]) -> int:
    """Return the smallest number of acquisitions among the locks that drafting takes."""
    return min(counts[kind] for kind in ("sequence", "graph", "tenant"))


@pytest.fixture
def drafter() -> SessionDrafter:
    return drafter_of(graph_of([TEXT[:5_000].tolist()], 3, VOCABULARY_SIZE), num_threads=1)


def test_a_prompt_is_taken_in_parts_and_under_no_lock_of_others(drafter: SessionDrafter) -> None:
    drafter.open(1)
    with recorded() as holds:
        drafter.accept(1, TEXT)
        counts = holds()
    assert counts["sequence"] >= len(TEXT) / MOST_TAKEN
    assert not counts["graph"]
    assert not counts["tenant"]


def test_what_is_learned_from_is_taken_in_parts(drafter: SessionDrafter) -> None:
    started(drafter, 1, TEXT[:10].tolist(), learn=True)
    with recorded() as holds:
        drafter.accept(1, TEXT[10:3_000])
        assert fewest(holds()) >= 2_990 / MOST_LEARNED
        drafter.close(1)
        assert holds()["tenant"] >= 2_990 / MOST_TAKEN


def test_a_text_is_added_to_a_memory_in_parts(drafter: SessionDrafter) -> None:
    memory = drafter.learned.memory("").core
    with recorded() as holds:
        memory.add(TEXT)
        assert holds()["tenant"] >= len(TEXT) / MOST_TAKEN
    assert len(memory) == len(TEXT) + 1


def test_a_large_tree_gives_locks_back_and_is_the_same(drafter: SessionDrafter) -> None:
    small = started(drafter, 1, TEXT[:300].tolist())
    with recorded() as holds:
        large = draft_of(drafter, 1, MAX_NODES)
        assert fewest(holds()) >= len(large) / MOST_EXPANDED
    assert large.token_ids[: len(small)] == small.token_ids


def test_a_step_with_a_long_prompt_is_taken_in_parts(drafter: SessionDrafter) -> None:
    table = _core.SessionTable(max_sessions=9, max_bytes=1 << 30, idle_timeout_ns=1 << 40, busy_ns=0)
    table.open(1, drafter.core, 1, "", drafter.learned.memory("").core, False, 0)
    answerer = _core.StepHandler(
        table,
        check_options=bytes,
        graph_of=lambda name, principal: (drafter.core, 1),
        default_generation=lambda: 1,
        max_sequences=9,
        max_tokens=1 << 20,
        max_nodes=MAX_NODES,
        max_step_nodes=MAX_NODES,
        max_message_bytes=1 << 20,
        budget=8,
    )
    payload = encode_step(None, StepRequest((SequenceRequest(tuple(TEXT.tolist()), 1, node_budget=0),)))
    with recorded() as holds:
        answerer.answer(payload, False, None, 1, 0, None)
        assert holds()["sequence"] >= len(TEXT) / MOST_TAKEN
    assert table.position(1) == len(TEXT)


def test_those_who_wait_come_before_the_next_part(drafter: SessionDrafter) -> None:
    drafter.open(1)
    drafter.accept(1, TEXT[:9_000])
    prompt = np.resize(TEXT, 2_000_000)
    taking = threading.Thread(target=drafter.accept, args=(1, prompt), kwargs={"is_prompt": True})
    sizes = set()
    taking.start()
    while taking.is_alive():
        sizes.add(drafter.num_bytes(1))
    taking.join()
    assert len(sizes) > 2  # the sequence grew between two answers


ROWS = st.lists(
    st.tuples(st.integers(0, 5), st.lists(st.integers(0, 9), min_size=1, max_size=4), st.integers(0, 9)), max_size=20
)


@given(shared=ROWS, own=ROWS)
def test_rows_over_those_of_a_tenant_are_those_of_a_copy(shared: list[Any], own: list[Any]) -> None:
    def tell(drafter: SessionDrafter, steps: list[Any]) -> list[object]:
        drafts = []
        for node, row, token in steps:
            draft = draft_of(drafter, 1, 8)
            drafter.recycle(1, [min(node, len(draft))], [row])
            drafter.accept(1, [token])
            drafts.append(values_of(draft))
        return [*drafts, values_of(draft_of(drafter, 1, 8))]

    first = drafter_of(max_branches=4)
    started(first, 1, [1, 2, 3], learn=True)
    tell(first, shared)
    memory = first.learned.memory("").core
    before = [each.tobytes() for each in memory.target_rows()]
    drafts = []
    for learn in (False, True):
        drafter = drafter_of(max_branches=4)
        drafter.learned.memory("").core.restore_target_rows(*memory.target_rows())
        started(drafter, 1, [3, 2, 1], learn=learn)
        drafts.append(tell(drafter, own))
        after = [each.tobytes() for each in drafter.learned.memory("").core.target_rows()]
        assert learn or after == before
    assert drafts[0] == drafts[1]


def test_a_session_that_nobody_learns_from_holds_its_own_rows_alone(drafter: SessionDrafter) -> None:
    for number, learn in ((1, True), (2, False)):
        started(drafter, number, TEXT[:100].tolist(), learn=learn)
        before = drafter.num_bytes(number)
        drafter.recycle(number, [0], [[1, 2, 3, 4]])
        drafter.accept(number, [5])
        assert (drafter.num_bytes(number) > before) != learn
        assert drafter.num_bytes(number) < before + 4_096


def test_threads_may_use_the_same_sequences(drafter: SessionDrafter) -> None:
    numbers = range(6)
    for number in numbers:
        started(drafter, number, TEXT[:200].tolist(), learn=number % 2 == 0, tenant=str(number % 3))

    def work(seed: int) -> int:
        random = np.random.default_rng(seed)
        for _ in range(150):
            number, start = int(random.choice(numbers)), int(random.integers(0, 40_000))
            drafter.accept(number, TEXT[start : start + int(random.choice([1, 3, 3_000]))], is_prompt=True)
            drafter.accept(number, TEXT[start : start + 3])
            draft = draft_of(drafter, number, 100, [*NGRAM_STRATEGIES][int(random.integers(len(NGRAM_STRATEGIES)))])
            drafter.recycle(number, [0], [TEXT[start : start + 4].tolist()])
            assert all(0 <= token_id < VOCABULARY_SIZE for token_id in draft.token_ids)
            drafter.draft_contexts([TEXT[start : start + 9]], [8], [0], [0], DraftOptions("tree"))
            drafter.learned.memory(str(number % 3)).core.add(TEXT[start : start + 2_000])
            _ = drafter.calibration.bins, drafter.learned.memory("0").core.target_rows()
        return seed

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(work, range(4))) == [*range(4)]
    for number in numbers:
        drafter.close(number)


NO_THREADS = """
import contextlib, resource, threading
from pathlib import Path
from support.graphs import graph_of
from support.sessions import draft_batch, drafter_of
def num_running():
    return len(list(Path("/proc/self/task").iterdir()))
graph = graph_of([list(range(40)) * 9], 3, 40)
drafts = []
for threads in (1, 8):
    drafter = drafter_of(graph, num_threads=threads)
    for number in range(32):
        drafter.open(number)
        drafter.accept(number, [number, number + 1])
    if threads > 1:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), used + (64 << 20)))
        with contextlib.suppress(RuntimeError):  # those that still start take the stacks of threads that have ended
            while True:
                threading.Thread(target=threading.Event().wait, daemon=True).start()
        before = num_running()
    drafts.append([draft.token_ids for draft in draft_batch(drafter, range(32), [32] * 32, [0] * 32)])
assert drafts[0] == drafts[1]
print(num_running() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits the size of a process")
def test_where_no_thread_can_be_started_one_drafts_alone() -> None:
    command = [sys.executable, "-c", NO_THREADS]
    # A thread's stack takes 1 GiB, which exceeds the memory limit.
    command = ["sh", "-c", 'ulimit -s 1048576; exec "$@"', "", *command]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd="tests")
    assert int(done.stdout) == 0
