"""Sorted keys to records: one pass writes all levels at once.

How many tokens a key shares with the key before it determines which levels begin a new record.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from speculant_graph import _core
from speculant_graph.graph.build.keys import KeyLayout
from speculant_graph.graph.layout import INNER_WORDS, Int64Array, UInt32Array, UInt64Array

_RECORDS = 1 << 15
"""Records of a level that are written at a time; they stay in a core's cache until then."""


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
        self._emitter = _core.Emitter(layout.length, layout.bits, _RECORDS)

    @property
    def num_nodes(self) -> tuple[int, ...]:
        """Records so far of every level."""
        return tuple(self._emitter.num_nodes)

    @property
    def totals(self) -> tuple[int, ...]:
        """Sums of counts so far of every level."""
        return tuple(self._emitter.totals)

    def emit(self, keys: UInt64Array, weights: Int64Array | None = None) -> Iterator[RecordBlock]:
        """Yield the records of further keys.

        Args:
            keys: sorted and not below those given before, shape ``[num_keys, num_words]``.
            weights: how often each occurs, shape ``[num_keys]``; once each if None.
        """
        row = 0
        while row < len(keys):
            row = self._emitter.emit(keys, weights, row)
            for length, records in enumerate(self._emitter.records, start=1):
                if len(records):
                    yield RecordBlock(length, records)
