"""The ring of tokens against a list: what is kept, what is found, and what a reader may see while it grows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from speculant_graph.draft.evidence import gather
from speculant_graph.draft.history import (
    LEARNED_CHAINS,
    NOTHING,
    SESSION_CHAINS,
    WINDOW,
    History,
    as_tokens,
    fill_window,
)
from speculant_graph.draft.recycled import RecycledRows
from speculant_graph.draft.sequence import graph_arrays
from speculant_graph.draft.sources import GAP, MAX_MATCHES, NUM_SOURCES, SESSION, Sources, make_entries
from speculant_graph.draft.tree_reference import Entry, Text, entries_of_gap, entries_of_text
from speculant_graph.graph.layout import Int64Array

GRAPH, ROWS = graph_arrays(None), RecycledRows().arrays

tokens = st.lists(st.integers(0, 5), max_size=40)


def window_of(history: History) -> Int64Array:
    window = np.full(WINDOW, -9, np.int64)
    fill_window(history.arrays, window)
    return window


def entries_of(history: History, *sources: int) -> list[tuple[int, int, int, list[tuple[int, int]]]]:
    """Return (source, length, total, successors) of every entry of a history's own end."""
    enabled = np.zeros(NUM_SOURCES, np.int64)
    enabled[list(sources)] = 1
    entries = make_entries()
    everything = Sources(GRAPH, history.arrays, History(1).arrays, ROWS, enabled)
    all_passed_on = np.full((NUM_SOURCES * 11 * 6 * 3, 2), 1e12)
    gather(everything, all_passed_on, window_of(history), WINDOW, 0, 0, entries)
    return [
        (
            int(entries.source[index]),
            int(entries.length[index]),
            int(entries.total[index]),
            [
                (int(entries.tokens[place]), int(entries.counts[place]))
                for place in range(entries.start[index], entries.start[index + 1])
            ],
        )
        for index in range(entries.size[0])
    ]


def rows_of(entries: Sequence[Entry]) -> list[tuple[int, int, int, list[tuple[int, int]]]]:
    return [(entry.source, entry.length, entry.total, list(entry.kept.items())) for entry in entries]


@settings(max_examples=100)
@given(
    max_tokens=st.sampled_from([1, 2, 3, 5, 8, 50, 64, 600, 10_000]),
    chains=st.sampled_from([SESSION_CHAINS, LEARNED_CHAINS, (3,)]),
    parts=st.lists(st.one_of(tokens, st.integers(100, 700).map(lambda size: [*range(size)])), max_size=8),
)
def test_what_is_kept(max_tokens: int, chains: tuple[int, ...], parts: list[list[int]]) -> None:
    history, written = History(max_tokens, chains), list[int]()
    for part in parts:
        history.append(np.array(part, np.int64))
        written += part
        kept = written[-max_tokens:]
        assert len(history) == len(written)
        for number in (0, 1, 7, len(kept), len(kept) + 5):
            assert history.latest(number).tolist() == kept[max(0, len(kept) - number) :]
        padded = [NOTHING] * WINDOW + kept
        assert window_of(history).tolist() == padded[-WINDOW:]
        assert history.arrays.tokens.size <= max(2, 2 * max_tokens)
        assert history.arrays.bounds[1] <= max_tokens


@settings(max_examples=100)
@given(
    max_tokens=st.sampled_from([5, 8, 30, 64, 700, 10_000]),
    parts=st.lists(st.lists(st.integers(0, 1), max_size=60), max_size=8),
    repeated=st.lists(st.integers(0, 1), max_size=50),
    copies=st.integers(0, 12),
)
def test_what_is_found(max_tokens: int, parts: list[list[int]], repeated: list[int], copies: int) -> None:
    history, written = History(max_tokens), Text()
    for part in [*parts, *[repeated] * copies]:
        history.append(np.array(part, np.int64))
        written += part
        kept = written[-max_tokens:]
        expected = entries_of_text(SESSION, kept, kept, SESSION_CHAINS)
        assert entries_of(history, SESSION) == rows_of(expected)
        assert entries_of(history, GAP) == rows_of(entries_of_gap(kept, kept))


def test_no_more_places_are_looked_at() -> None:
    history = History(10_000)
    history.append(np.array([*[7, 8] * 1_000, 7], np.int64))
    ((_, length, total, counts),) = entries_of(history, SESSION)
    # The newest place is the end itself, which nothing has followed yet.
    assert (length, total, counts) == (WINDOW, MAX_MATCHES - 1, [(8, MAX_MATCHES - 1)])


@given(size=st.integers(0, 3_000), first=st.integers(0, 600))
def test_growing_changes_nothing(size: int, first: int) -> None:
    """A history that was made large enough at once finds what a grown one finds."""
    assume(first <= size)
    text = np.random.default_rng(size).integers(0, 2, size)
    grown, large = History(4_096), History(4_096)
    large.reserve(4_096)
    for part in (text[:first], *np.array_split(text[first:], 5)):
        grown.append(part)
        large.append(part)
    assert grown.latest(size).tolist() == large.latest(size).tolist() == text.tolist()
    assert entries_of(grown, SESSION, GAP) == entries_of(large, SESSION, GAP)


def test_growing_leaves_the_old_arrays_alone() -> None:
    history = History(4_096)
    history.append(np.arange(500))
    before = history.arrays
    history.append(np.arange(500))
    assert history.arrays is not before
    assert before.bounds.tolist() == [500, 512]
    assert before.tokens[:500].tolist() == list(range(500))


@pytest.mark.parametrize(
    ("token_ids", "expected"),
    [
        ([], []),
        ([0, 5, 2**21 - 2], [0, 5, 2**21 - 2]),
        ([-1, -2, -(2**60), 2**21 - 1, 2**40], [NOTHING] * 5),
        ([[1, -1], [2**40, 3]], [[1, NOTHING], [NOTHING, 3]]),
    ],
)
def test_tokens_for_kernels(token_ids: list[int], expected: list[int]) -> None:
    assert as_tokens(token_ids).tolist() == expected
