"""The ring of tokens against a list: what is kept, and what is found."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from speculant_graph._core import SessionHistory
from support.tree_reference import (
    GAP,
    LEARNED_CHAINS,
    MAX_MATCHES,
    SESSION,
    SESSION_CHAINS,
    WINDOW,
    Entry,
    Text,
    entries_of_gap,
    entries_of_text,
)

tokens = st.lists(st.integers(0, 5), max_size=40)


def entries_of(history: SessionHistory, *sources: int) -> list[tuple[int, int, int, list[tuple[int, int]]]]:
    """Return (source, length, total, successors) of every context of a history's own end."""
    return [found for found in history.matches() if found[0] in sources]


def rows_of(entries: Sequence[Entry]) -> list[tuple[int, int, int, list[tuple[int, int]]]]:
    return [(entry.source, entry.length, entry.total, list(entry.kept.items())) for entry in entries]


@settings(max_examples=100)
@given(
    max_tokens=st.sampled_from([1, 2, 3, 5, 8, 50, 64, 600, 10_000]),
    chains=st.sampled_from([SESSION_CHAINS, LEARNED_CHAINS]),
    parts=st.lists(st.one_of(tokens, st.integers(100, 700).map(lambda size: [*range(size)])), max_size=8),
)
def test_what_is_kept(max_tokens: int, chains: tuple[int, ...], parts: list[list[int]]) -> None:
    history, written = SessionHistory(max_tokens, chains), list[int]()
    for part in parts:
        history.append(np.array(part, np.int64))
        written += part
        kept = written[-max_tokens:]
        assert len(history) == len(written)
        for number in (0, 1, 7, len(kept), len(kept) + 5):
            assert history.latest(number).tolist() == kept[max(0, len(kept) - number) :]
        assert history.num_bytes <= 20 * max(2, 2 * max_tokens)


@settings(max_examples=100)
@given(
    max_tokens=st.sampled_from([5, 8, 30, 64, 700, 10_000]),
    parts=st.lists(st.lists(st.integers(0, 1), max_size=60), max_size=8),
    repeated=st.lists(st.integers(0, 1), max_size=50),
    copies=st.integers(0, 12),
)
def test_what_is_found(max_tokens: int, parts: list[list[int]], repeated: list[int], copies: int) -> None:
    history, written = SessionHistory(max_tokens, SESSION_CHAINS), Text()
    for part in [*parts, *[repeated] * copies]:
        history.append(np.array(part, np.int64))
        written += part
        kept = written[-max_tokens:]
        expected = entries_of_text(SESSION, kept, kept, SESSION_CHAINS)
        assert entries_of(history, SESSION) == rows_of(expected)
        assert entries_of(history, GAP) == rows_of(entries_of_gap(kept, kept))


def test_no_more_places_are_looked_at() -> None:
    history = SessionHistory(10_000, SESSION_CHAINS)
    history.append(np.array([*[7, 8] * 1_000, 7], np.int64))
    ((_, length, total, counts),) = entries_of(history, SESSION)
    # The newest place is the end itself, which nothing has followed yet.
    assert (length, total, counts) == (WINDOW, MAX_MATCHES - 1, [(8, MAX_MATCHES - 1)])


@given(size=st.integers(0, 3_000), first=st.integers(0, 600))
def test_growing_changes_nothing(size: int, first: int) -> None:
    """A history that took all at once finds what a grown one finds."""
    assume(first <= size)
    text = np.random.default_rng(size).integers(0, 2, size)
    grown, whole = (SessionHistory(4_096, SESSION_CHAINS) for _ in range(2))
    for part in (text[:first], *np.array_split(text[first:], 5)):
        grown.append(part)
    whole.append(text)
    assert grown.latest(size).tolist() == whole.latest(size).tolist() == text.tolist()
    assert entries_of(grown, SESSION, GAP) == entries_of(whole, SESSION, GAP)


@pytest.mark.parametrize("foreign", [-1, -2, -(2**60), 2**21 - 1, 2**40])
def test_what_is_no_token_matches_nothing(foreign: int) -> None:
    history = SessionHistory(100, SESSION_CHAINS)
    history.append(np.array([5, foreign, 6, 7, foreign, 2**21 - 2], np.int64))
    assert history.latest(10).tolist() == [5, -1, 6, 7, -1, 2**21 - 2]
    history.append(np.array([foreign], np.int64))
    assert entries_of(history, SESSION, GAP) == []
