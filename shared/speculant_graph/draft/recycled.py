"""The target's own latest top tokens, by the token they follow (Token Recycling: Luo et al. 2024).

Every verified position tells what the target thought likely there, accepted or not; the next time the same token comes
up, these are candidates. What helps on text that no corpus resembles.
"""

from __future__ import annotations

import numpy as np

from speculant_graph.draft.sources import RecycledArrays
from speculant_graph.graph.compiled import compiled
from speculant_graph.graph.layout import Int64Array

WIDTH = 8
"""Tokens kept of a row."""
_SLOTS = 16_384


class RecycledRows:
    """One row for a token, the latest; of two tokens that share a slot the later one stays."""

    def __init__(self) -> None:
        """Make an empty table; it takes no memory before the first row comes."""
        self.arrays = RecycledArrays(np.full(1, -1, np.int64), np.full((1, WIDTH), -1, np.int32))

    def copy(self) -> RecycledRows:
        """Return rows that change apart from these."""
        copy = RecycledRows()
        copy.arrays = RecycledArrays(self.arrays.keys.copy(), self.arrays.rows.copy())
        return copy

    def put(self, contexts: Int64Array, rows: Int64Array) -> None:
        """Take the latest rows.

        Args:
            contexts: the tokens that the rows follow, shape ``[n]``.
            rows: the target's most probable next tokens, best first, negative for none, shape ``[n, width]``.
        """
        if self.arrays.keys.size == 1:
            self.arrays = RecycledArrays(np.full(_SLOTS, -1, np.int64), np.full((_SLOTS, WIDTH), -1, np.int32))
        _put_rows(self.arrays, contexts, rows)


@compiled
def _put_rows(recycled: RecycledArrays, contexts: Int64Array, rows: Int64Array) -> None:
    for index in range(contexts.size):
        token_id = contexts[index]
        if token_id < 0:
            continue
        slot = token_id & (recycled.keys.size - 1)
        recycled.keys[slot] = token_id
        for rank in range(recycled.rows.shape[1]):
            recycled.rows[slot, rank] = rows[index, rank] if rank < rows.shape[1] else -1
