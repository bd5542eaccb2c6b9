"""A batch drafted in one call gets the same drafts as its sequences one by one."""

from __future__ import annotations

import os
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculant_graph.draft.options import DraftOptions
from speculant_graph.draft.session_drafter import SessionDrafter
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.strategies import NGRAM_STRATEGIES
from speculant_graph.types import Draft
from support.graphs import graph_of
from support.sessions import draft_batch, drafter_of, values_of

VOCABULARY_SIZE = 12
CORPUS = [(index * index + index // 3) % VOCABULARY_SIZE for index in range(700)]
SEQUENCES = st.lists(st.lists(st.integers(0, VOCABULARY_SIZE + 1), max_size=12), min_size=1, max_size=5)


@pytest.fixture(scope="module")
def graph() -> NgramGraph:
    return graph_of([CORPUS], 4, VOCABULARY_SIZE)


@pytest.fixture(scope="module")
def drafter(graph: NgramGraph) -> SessionDrafter:
    return drafter_of(graph, strategy="greedy", max_branches=4)


@given(
    sequences=SEQUENCES,
    strategy=st.sampled_from([*NGRAM_STRATEGIES]),
)
def test_contexts_are_drafted_as_sequences_that_just_began(
    drafter: SessionDrafter, sequences: list[list[int]], strategy: Any
) -> None:
    options = DraftOptions(strategy)
    session_ids = list(range(1, len(sequences) + 1))
    contexts = [np.array(tokens, np.int64) for tokens in sequences]
    for session_id, context in zip(session_ids, contexts, strict=True):
        drafter.open(session_id)
        drafter.accept(session_id, context)
    budgets, positions = [5] * len(sequences), [len(tokens) for tokens in sequences]
    expected = draft_batch(drafter, session_ids, budgets, session_ids, options)
    for session_id in session_ids:
        drafter.close(session_id)
    drafts = drafter.draft_contexts(contexts, budgets, session_ids, positions, options)
    assert [values_of(draft) for draft in drafts] == [values_of(draft) for draft in expected]
    assert len(drafter) == 0


def size_of(drafts: list[Draft]) -> int:
    """Return the number of entries of all distributions."""
    return sum(len(q.token_ids) for draft in drafts for q in draft.proposals)


def tokens_of(drafts: list[Draft]) -> list[tuple[int, ...]]:
    return [draft.token_ids for draft in drafts]


def test_distributions_are_limited(drafter: SessionDrafter) -> None:
    contexts = [np.array(CORPUS[:5])] * 9
    arguments = contexts, [8] * 9, [0] * 9, [5] * 9
    whole = drafter.draft_contexts(*arguments, DraftOptions("sampling"))
    for most in range(1, size_of(whole) + 1, 7):
        cut = drafter.draft_contexts(*arguments, DraftOptions("sampling"), max_support=most)
        assert size_of(cut) <= most
        assert sum(map(len, cut)) < sum(map(len, whole))
        for one, other in zip(cut, whole, strict=True):
            assert one.token_ids == other.token_ids[: len(one)]
    without = drafter.draft_contexts(*arguments, DraftOptions("sampling", omit_proposals=True), max_support=20)
    assert tokens_of(without) == tokens_of(whole)


@pytest.mark.parametrize("threads", [2, 3, 16])
@pytest.mark.parametrize("strategy", ["tree", "adaptive"])
def test_drafts_of_threads_are_those_of_one(graph: NgramGraph, strategy: Any, threads: int) -> None:
    alone, together = drafter_of(graph, num_threads=1), drafter_of(graph, num_threads=threads)
    count = 41
    for drafter in (alone, together):
        for session_id in range(count):
            drafter.open(session_id)
            drafter.accept(session_id, CORPUS[session_id : 2 * session_id + 1])
    arguments = list(range(count)), [index % 60 + 40 for index in range(count)], [0] * count, DraftOptions(strategy)
    expected = [values_of(draft) for draft in draft_batch(alone, *arguments)]
    for _ in range(3):
        assert [values_of(draft) for draft in draft_batch(together, *arguments)] == expected


def test_a_process_that_was_forked_drafts_on_threads_of_its_own(graph: NgramGraph) -> None:
    drafter = drafter_of(graph, num_threads=2)
    for number in range(32):
        drafter.open(number)
        drafter.accept(number, CORPUS[number : 2 * number + 9])
    arguments = list(range(32)), [32] * 32, [0] * 32
    expected = tokens_of(draft_batch(drafter, *arguments))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        os._exit(0 if tokens_of(draft_batch(drafter, *arguments)) == expected else 1)
    assert os.waitpid(child, 0)[1] == 0
