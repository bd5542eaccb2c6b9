"""Sorted keys to records: one pass writes all levels at once.

How many tokens a key shares with the key before it tells which levels begin a new record.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from speculant_graph.graph.compiled import compiled
from speculant_graph.graph.keys import KeyLayout, key_token
from speculant_graph.graph.layout import (
    CHILD,
    CUMULATIVE,
    INNER_WORDS,
    LINK,
    TOKEN,
    Int64Array,
    UInt32Array,
    UInt64Array,
)

_RECORDS = 1 << 15
"""Records of a level that are written at a time; they stay in a core's cache until then."""


@compiled
def emit_records(
    keys: UInt64Array,
    weights: Int64Array,
    start: int,
    stop: int,
    length: int,
    bits: int,
    per_word: int,
    last_key: UInt64Array,
    num_nodes: Int64Array,
    totals: Int64Array,
    records: UInt32Array,
    fill: Int64Array,
) -> int:
    """Append the records of keys until a buffer is full; call again with what is returned until that is ``stop``.

    Args:
        keys: sorted, shape ``[>= stop, num_words]``; equal ones may repeat.
        weights: how often each occurs; empty if every key counts once.
        start: first key to take.
        stop: end of the keys.
        length: tokens of a key.
        bits: bits of a token.
        per_word: tokens in a word.
        last_key: the key taken last, shape ``[num_words]``; zeros before the first.
        num_nodes: records so far, shape ``[length]``.
        totals: running counts, shape ``[length]``.
        records: buffers, shape ``[length, capacity, 4]``.
        fill: records in each buffer, shape ``[length]``.

    Returns:
        The first key that was not taken.
    """
    num_words = keys.shape[1]
    capacity = records.shape[1]
    fullest = np.int64(0)
    for depth in range(length):
        fullest = max(fullest, fill[depth])
    for row in range(start, stop):
        if fullest == capacity:
            return row
        weight = weights[row] if weights.size else np.int64(1)
        shared = length
        for word in range(num_words):
            difference = keys[row, word] ^ last_key[word]
            if difference != 0:
                shared = word * per_word
                shift = np.uint64(bits * (per_word - 1))
                while difference >> shift == 0:
                    shared += 1
                    shift -= np.uint64(bits)
                break
        for depth in range(shared):
            if key_token(keys, row, depth, bits, per_word) == 0:
                break
            totals[depth] += weight
        for depth in range(shared, length):
            value = key_token(keys, row, depth, bits, per_word)
            if value == 0:
                break
            place = fill[depth]
            records[depth, place, TOKEN] = value - np.uint64(1)
            records[depth, place, CUMULATIVE] = totals[depth]
            records[depth, place, CHILD] = num_nodes[depth + 1] if depth + 1 < length else 0
            records[depth, place, LINK] = 0
            fill[depth] = place + 1
            num_nodes[depth] += 1
            totals[depth] += weight
            fullest = max(fullest, place + 1)
        for word in range(num_words):
            last_key[word] = keys[row, word]
    return stop


@dataclass(frozen=True, slots=True)
class RecordBlock:
    """Some records of one level, as they follow each other."""

    length: int
    """Tokens of the n-grams."""
    records: UInt32Array
    """Shape ``[n, 4]``, a view that is good until the next block; of the last level the child is 0."""


def emitter_bytes(layout: KeyLayout) -> int:
    """Return the memory that an emitter takes."""
    return layout.length * _RECORDS * INNER_WORDS * 4


class Emitter:
    """Turns sorted keys, given in any portions, into records."""

    def __init__(self, layout: KeyLayout) -> None:
        """Start with empty levels."""
        self.num_nodes = np.zeros(layout.length, np.int64)
        """Records so far of every level, shape ``[N + 1]``."""
        self.totals = np.zeros(layout.length, np.int64)
        """Sum of counts so far of every level, shape ``[N + 1]``."""
        self._layout = layout
        self._last_key = np.zeros(layout.num_words, np.uint64)
        self._records = np.empty((layout.length, _RECORDS, INNER_WORDS), np.uint32)

    def emit(self, keys: UInt64Array, weights: Int64Array | None = None) -> Iterator[RecordBlock]:
        """Yield the records of further keys.

        Args:
            keys: sorted and not below those given before, shape ``[num_keys, num_words]``.
            weights: how often each occurs, shape ``[num_keys]``; once each if None.
        """
        layout = self._layout
        fill = np.zeros(layout.length, np.int64)
        counts = np.empty(0, np.int64) if weights is None else weights
        row = 0
        while row < len(keys):
            row = emit_records(
                keys, counts, row, len(keys), layout.length, layout.bits, layout.per_word,
                self._last_key, self.num_nodes, self.totals, self._records, fill,
            )  # fmt: skip
            for depth, size in enumerate(fill.tolist()):
                if size:
                    yield RecordBlock(depth + 1, self._records[depth, :size])
            fill[:] = 0
