"""Histories grow in steps, and give the slow reference's matches before, during and after each growth."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from speculant_graph.config import DraftConfig
from speculant_graph.draft.session_drafter import SessionDrafter
from support.drafter_reference import SlowDrafter
from support.sessions import draft_of, drafter_of

SOURCES = frozenset({"session", "learned"})
RANDOM = np.random.default_rng(0)
PHRASES = RANDOM.integers(0, 4_000, (600, 10))  # rare enough that hash chains are short
TEXT = PHRASES[RANDOM.integers(0, len(PHRASES), 9_000)].reshape(-1)
FULL = 16_384  # a ring of at least this size grows in steps


def both(most: int, learned: int = 1_000_000) -> tuple[SessionDrafter, SlowDrafter]:
    """Return a drafter and its reference, each with sequence 1."""
    config = DraftConfig(strategy="tree", max_branches=3, sources=SOURCES, max_learned_tokens=learned)
    fast, slow = (
        SessionDrafter(None, config, max_session_tokens=most),
        SlowDrafter((), config, max_session_tokens=most),
    )
    for drafter in (fast, slow):
        drafter.open(1)
    return fast, slow


def assert_same_draft(fast: SessionDrafter, slow: SlowDrafter) -> None:
    expected, draft = slow.draft(1, "tree", 12), draft_of(fast, 1, 12)
    assert draft.token_ids == tuple(node.path[-1] for node in expected)
    assert draft.path_probabilities == tuple(node.probability for node in expected)


@settings(max_examples=6, deadline=None)
@given(
    start=st.integers(11_500, 16_400),
    steps=st.lists(st.integers(1, 1_500), min_size=1, max_size=3),
    most=st.sampled_from([9_000, 17_000, 20_001, 32_768, 131_072]),
)
def test_a_sequence_that_grows_is_drafted_for_as_by_the_reference(start: int, steps: list[int], most: int) -> None:
    fast, slow = both(most)
    position = 0
    for size in (start, *steps):
        tokens = TEXT[position : position + size].tolist()
        fast.accept(1, tokens, is_prompt=True)
        slow.sequences[1].text += tokens
        position += size
        assert_same_draft(fast, slow)


@settings(max_examples=6, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 9_000), min_size=1, max_size=6),
    most=st.sampled_from([9_000, 20_001, 32_768, 1_000_000]),
    start=st.integers(0, 20_000),
)
def test_a_memory_that_grows_is_drafted_from_as_by_the_reference(sizes: list[int], most: int, start: int) -> None:
    fast, slow = both(131_072, most)
    prompt = TEXT[:40].tolist()
    fast.accept(1, prompt)
    slow.sequences[1].text += prompt
    for size in sizes:
        text = TEXT[start : start + size]
        fast.learned.memory("").core.add(text)
        slow.sequences[1].memory.text += [None, *text.tolist()]
        start += size
        assert_same_draft(fast, slow)


def test_memory_of_a_sequence_grows_with_it_and_counts_both_rings_while_it_does() -> None:
    drafter = drafter_of()
    drafter.open(1)
    sizes = []
    for start in range(0, 40_000, 16):
        drafter.accept(1, TEXT[start : start + 16], is_prompt=True)
        sizes.append(drafter.num_bytes(1))
    entry = 20
    assert sizes[FULL // 16 - 1] - 4_096 == 3 * FULL * entry
    assert sizes[FULL // 16] - 4_096 == 2 * FULL * entry
    assert sizes[-1] - 4_096 == 65_536 * entry
