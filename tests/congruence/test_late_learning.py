"""The core learns from a step's tokens after it has answered the step, with the same result as before it."""

from __future__ import annotations

import copy
import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from congruence.test_draft_tree import VOCABULARY_SIZE, assert_same_tables, text_of
from speculant_graph.config import DraftConfig
from speculant_graph.draft.options import DraftOptions
from speculant_graph.draft.session_drafter import SessionDrafter
from speculant_graph.types import Feedback, SequenceStep
from support.drafter_reference import SlowDrafter
from support.graphs import graph_of
from support.oracle import OracleGraph

MOST_LEARNED = 32
"""Maximum number of tokens of a step that it learns from (step.cpp)."""


@settings(max_examples=20)
@given(
    seed=st.integers(0, 2**32),
    counts=st.lists(st.sampled_from([1, 1, 2, 5, 40, 100]), min_size=2, max_size=8),
    has_rows=st.booleans(),
)
def test_a_step_is_drafted_by_what_was_learned_before_its_tokens(seed: int, counts: list[int], has_rows: bool) -> None:
    """If a step has target top-k rows, the core learns from its tokens immediately instead."""
    chance = random.Random(seed)
    alphabet = chance.sample(range(VOCABULARY_SIZE), chance.choice([2, 4, 12]))
    corpus = [text_of(chance, alphabet, 100)]
    config = DraftConfig(strategy="tree", sources=("session", "corpus", "learned", "recycled"))
    fast = SessionDrafter(graph_of(corpus, 4, VOCABULARY_SIZE), config)
    slow = SlowDrafter([OracleGraph(corpus, 4)], config, VOCABULARY_SIZE)
    text = text_of(chance, alphabet, 20 + sum(counts), corpus)
    length = len(text) - sum(counts)
    for drafter in (fast, slow):
        drafter.open(1)
        drafter.accept(1, text[:length])
    slow.draft(1, "tree", 4)  # a calibrated strategy drafts for the sequence
    (draft,) = fast.draft([SequenceStep(1, text[:length], 4, options=DraftOptions("tree"))])
    for number in counts:
        length += number
        row = chance.sample(alphabet, 2)
        feedback = Feedback(draft.draft_id, [0], np.array([row])) if has_rows else None
        if has_rows:
            slow.recycle(1, [0], [row])
        before = copy.deepcopy(slow.tables)
        slow.accept(1, text[length - number : length], MOST_LEARNED)
        after = slow.tables
        if not has_rows:
            slow.tables = before
        step = SequenceStep(1, text[:length], 12, feedback=feedback, options=DraftOptions("tree"))
        (draft,) = fast.draft([step])
        expected = slow.draft(1, "tree", 12)
        slow.tables = after
        assert [*draft.token_ids] == [node.path[-1] for node in expected]
        assert [*draft.parents] == [node.parent for node in expected]
    for drafter in (fast, slow):  # the core learns from the rest first
        drafter.accept(1, [text[0]])
    assert_same_tables(fast.calibration, slow.tables)
