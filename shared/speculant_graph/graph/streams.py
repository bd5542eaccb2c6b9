"""Sorted keys with weights: a graph taken apart, and streams of them put together.

A graph is the sum of its keys: every (N+1)-gram, and every shorter n-gram as often as it ended with a document or lost
its continuations to pruning. So union, update and pruning need no kernel of their own that writes records: their keys
go to the one that a build uses.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from speculant_graph.graph.compiled import compiled
from speculant_graph.graph.keys import KeyLayout
from speculant_graph.graph.layout import (
    CHILD,
    CUMULATIVE,
    INNER_WORDS,
    LEAF_WORDS,
    TOKEN,
    TOKEN_MASK,
    Int64Array,
    Trie,
    UInt32Array,
    UInt64Array,
)

_KEYS_AT_A_TIME = 1 << 16


@dataclass(frozen=True, slots=True)
class WeightedKeys:
    """Some keys of a stream, ascending."""

    keys: UInt64Array
    """Shape ``[n, num_words]``."""
    weights: Int64Array
    """Shape ``[n]``, how often each occurs; below zero to take something away."""


KeyStream = Iterator[WeightedKeys]


@compiled
def read_keys(
    words: UInt32Array,
    table: Int64Array,
    min_count: int,
    length: int,
    bits: int,
    per_word: int,
    state: Int64Array,
    keys: UInt64Array,
    weights: Int64Array,
) -> int:
    """Walk through a trie, depth first, and write the key of every n-gram that has counts of its own.

    Args:
        words: the block of the trie.
        table: its table.
        min_count: n-grams with lower counts are left out; their counts stay with the n-gram they continue.
        length: tokens of a key.
        bits: bits of a token.
        per_word: tokens in a word.
        state: where the walk is, shape ``[3, length + 1]``: next node and end of the row at each depth, and the depth;
            zeros, and the number of nodes of level 1 in ``state[1, 0]``, before the first call.
        keys: output, shape ``[capacity, num_words]``.
        weights: output, shape ``[capacity]``.

    Returns:
        The number of keys that were written; 0 when the walk is over.
    """
    depth = state[2, 0]
    prefix = np.zeros(length, np.uint64)
    for above in range(depth):
        node = state[0, above] - 1
        prefix[above] = np.uint64(words[table[above, 0] + node * INNER_WORDS + TOKEN] & np.uint32(TOKEN_MASK))
    found = 0
    while found < weights.size:
        while depth >= 0 and state[0, depth] >= state[1, depth]:
            depth -= 1
        if depth < 0:
            break
        node = state[0, depth]
        state[0, depth] = node + 1
        is_leaf = depth + 1 == length
        width = LEAF_WORDS if is_leaf else INNER_WORDS
        place = table[depth, 0] + node * width
        count = np.int64(words[place + width + CUMULATIVE]) - np.int64(words[place + CUMULATIVE])
        if count < min_count:
            continue
        prefix[depth] = np.uint64(words[place + TOKEN] & np.uint32(TOKEN_MASK))
        own = count
        if not is_leaf:
            low, high = np.int64(words[place + CHILD]), np.int64(words[place + width + CHILD])
            if high > table[depth + 1, 1]:
                low, high = np.int64(0), np.int64(0)
            child_width = LEAF_WORDS if depth + 2 == length else INNER_WORDS
            child_place = table[depth + 1, 0] + low * child_width + CUMULATIVE
            if min_count == 1 and low < high:
                own -= np.int64(words[child_place + (high - low) * child_width]) - np.int64(words[child_place])
            elif low < high:
                for _ in range(low, high):
                    child_count = np.int64(words[child_place + child_width]) - np.int64(words[child_place])
                    own -= child_count if child_count >= min_count else 0
                    child_place += child_width
            state[0, depth + 1] = low
            state[1, depth + 1] = high
        if own > 0:
            for word_index in range(keys.shape[1]):
                word = np.uint64(0)
                for index in range(per_word):
                    word <<= np.uint64(bits)
                    if word_index * per_word + index <= depth:
                        word |= prefix[word_index * per_word + index] + np.uint64(1)
                keys[found, word_index] = word
            weights[found] = own
            found += 1
        if not is_leaf:
            depth += 1
    state[2, 0] = depth
    return found


@compiled
def merge_keys(
    first_keys: UInt64Array,
    first_weights: Int64Array,
    second_keys: UInt64Array,
    second_weights: Int64Array,
    places: Int64Array,
    keys: UInt64Array,
    weights: Int64Array,
) -> int:
    """Merge two ascending lists of distinct keys until one is exhausted; equal keys add their weights.

    Args:
        first_keys: shape ``[n, num_words]``.
        first_weights: shape ``[n]``.
        second_keys: shape ``[m, num_words]``.
        second_weights: shape ``[m]``.
        places: what was taken of each so far, shape ``[2]``; advanced.
        keys: output, shape ``[>= n + m, num_words]``.
        weights: output, shape ``[>= n + m]``.

    Returns:
        The number of keys that were written.
    """
    num_words = keys.shape[1]
    first, second = places[0], places[1]
    found = 0
    while first < first_weights.size and second < second_weights.size:
        order = 0
        for word in range(num_words):
            if first_keys[first, word] != second_keys[second, word]:
                order = -1 if first_keys[first, word] < second_keys[second, word] else 1
                break
        weight = np.int64(0)
        for word in range(num_words):
            keys[found, word] = first_keys[first, word] if order <= 0 else second_keys[second, word]
        if order <= 0:
            weight += first_weights[first]
            first += 1
        if order >= 0:
            weight += second_weights[second]
            second += 1
        if weight != 0:  # nothing is left of what was taken away
            weights[found] = weight
            found += 1
    places[0], places[1] = first, second
    return found


def keys_of(trie: Trie, layout: KeyLayout, min_count: int = 1) -> KeyStream:
    """Yield the keys of a graph, ascending.

    Args:
        trie: the graph's arrays.
        layout: how keys are packed.
        min_count: n-grams with lower counts are pruned.
    """
    state = np.zeros((3, layout.length + 1), np.int64)
    state[1, 0] = trie.nodes_per_level[0]
    while True:
        keys = np.empty((_KEYS_AT_A_TIME, layout.num_words), np.uint64)
        weights = np.empty(_KEYS_AT_A_TIME, np.int64)
        num_keys = read_keys(
            trie.words, trie.table, min_count, layout.length, layout.bits, layout.per_word, state, keys, weights
        )
        if not num_keys:
            return
        yield WeightedKeys(keys[:num_keys], weights[:num_keys])


def keys_of_ngrams(ngrams: dict[tuple[int, ...], int], layout: KeyLayout) -> KeyStream:
    """Yield the keys of a few n-grams of up to N+1 tokens with their weights, zero weights left out."""
    packed = sorted((layout.pack(ngram), weight) for ngram, weight in ngrams.items() if weight)
    if packed:
        keys, weights = zip(*packed, strict=True)
        yield WeightedKeys(np.array(keys, np.uint64), np.array(weights, np.int64))


def merged(first: KeyStream, second: KeyStream) -> KeyStream:
    """Yield the keys of two streams, ascending, the weights of equal keys added."""
    ours, theirs = next(first, None), next(second, None)
    places = np.zeros(2, np.int64)
    while ours is not None and theirs is not None:
        most = ours.weights.size + theirs.weights.size
        keys, weights = np.empty((most, ours.keys.shape[1]), np.uint64), np.empty(most, np.int64)
        num_keys = merge_keys(ours.keys, ours.weights, theirs.keys, theirs.weights, places, keys, weights)
        if num_keys:
            yield WeightedKeys(keys[:num_keys], weights[:num_keys])
        if places[0] == ours.weights.size:
            ours, places[0] = next(first, None), 0
        if places[1] == theirs.weights.size:
            theirs, places[1] = next(second, None), 0
    for rest, place, stream in ((ours, places[0], first), (theirs, places[1], second)):
        if rest is not None:
            yield WeightedKeys(rest.keys[place:], rest.weights[place:])
            yield from stream
