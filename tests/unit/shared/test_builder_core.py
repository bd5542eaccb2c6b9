"""The core's build functions with invalid arrays: they raise an error or return nonsense, but stay within bounds."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculant_graph import _core
from speculant_graph.graph.build.keys import KeyLayout
from speculant_graph.graph.layout import array_offsets, trie_of
from speculant_graph.graph.store import check_graph
from support.damage import damaged
from support.graphs import graph_of

SEEDS = st.integers(0, 2**32 - 1)
TOKEN_IDS = np.random.default_rng(0).integers(0, 6, 300)
GRAPH = graph_of([TOKEN_IDS.tolist()], 3, 8)


def wrong_numbers(random: np.random.Generator, size: int, dtype: type) -> np.ndarray:
    """Return mostly small numbers."""
    numbers = random.integers(0, 9, size, dtype=dtype)
    return np.where(random.random(size) < 0.05, np.iinfo(dtype).max - numbers, numbers)


@pytest.mark.hostile
@given(seed=SEEDS)
def test_a_damaged_graph_is_checked_and_read(seed: int) -> None:
    graph = damaged(GRAPH, np.random.default_rng(seed))
    with contextlib.suppress(Exception):
        check_graph(graph.trie, graph.metadata)
    for min_count in (1, 2):
        reader = _core.KeyReader(graph.core, 4, min_count)
        keys, weights = np.empty((50, 1), np.uint64), np.empty(50, np.int64)
        for _ in range(100):  # a damaged graph could take very long
            if not reader.read(keys, weights):
                break


@pytest.mark.hostile
@given(seed=SEEDS)
def test_damaged_levels_are_finished_or_refused(seed: int) -> None:
    random = np.random.default_rng(seed)
    sizes = (5, 9, 12)
    words = wrong_numbers(random, array_offsets(sizes, 8)[-1], np.uint32)
    trie = trie_of(words, sizes, 8)
    levels = [trie.level(length) for length in (1, 2, 3)]
    for level in levels:
        if random.random() < 0.8:
            level[:, 2:3].sort(0)  # with sorted children, the functions get further
    _core.fill_unigram_index(levels[0], trie.first)
    for call in (
        lambda: _core.link_pairs(levels[0], levels[1], trie.first, 0, 5),
        lambda: _core.link_children(levels[0], levels[1], levels[2], 0, 9),
        lambda: _core.mark_argmax(levels[0], levels[1], 0, 5),
        lambda: _core.mark_argmax(levels[1], levels[2], 2, 9),
    ):
        with contextlib.suppress(ValueError):
            call()


@pytest.mark.hostile
@given(seed=SEEDS, size=st.integers(1, 400))
def test_damaged_keys_are_sorted_emitted_and_merged(seed: int, size: int) -> None:
    random = np.random.default_rng(seed)
    layout = KeyLayout.of(int(random.choice([3, 200, 2**21 - 1])), int(random.integers(1, 8)))
    keys = random.integers(0, 2**64, (size, layout.num_words), np.uint64) >> np.uint64(random.integers(0, 64))
    depth, low, high = random.integers(0, layout.length), random.integers(0, 4), random.integers(1, 1 << layout.bits)
    with contextlib.suppress(ValueError):
        _core.sort_keys(keys, np.empty_like(keys), depth, low, high, layout.length, layout.bits)
    emitter = _core.Emitter(layout.length, layout.bits, 7)
    row = 0
    while row < size:
        row = emitter.emit(keys, None, row)
        assert max(len(records) for records in emitter.records) <= 7
    weights = random.integers(-2, 3, size)
    merged = np.empty((2 * size, layout.num_words), np.uint64), np.empty(2 * size, np.int64)
    _core.merge_keys(keys, weights, keys[: size // 2], weights[: size // 2], 0, 0, *merged)


@pytest.mark.parametrize("token_id", [7, 2**31, 2**32 - 2])
def test_tokens_outside_of_the_vocabulary_are_refused(token_id: int) -> None:
    token_ids = np.array([0, token_id, 0], np.uint32)
    with pytest.raises(ValueError, match="vocabulary"):  # promised: the core's errors name the limit
        _core.count_values(token_ids, np.empty(0, np.uint64), np.zeros(8, np.int64))
