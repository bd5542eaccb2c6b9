"""The target's own top tokens, by the last token and by the last two that they follow.

After Token Recycling (Luo et al. 2024), which keeps the latest row of every token. Every verified position tells what
the target thought likely there, accepted or not; when the same token, or the same two, come up again, these are
candidates. What helps on text that no corpus resembles.
"""

from __future__ import annotations

import io

import numpy as np

from speculant_graph.draft.sources import ROW_DEPTH, ROW_WIDTH, RecycledArrays, row_key, row_slot
from speculant_graph.errors import ConfigError
from speculant_graph.graph.compiled import compiled
from speculant_graph.graph.layout import MAX_VOCABULARY, Int64Array

NUM_SLOTS = 32_768
"""Contexts of a table, a power of two: 2.4 MB with their rows."""
_FORMAT = 1


class RecycledRows:
    """The latest rows of every context; of two contexts that share a slot the later one stays."""

    def __init__(self) -> None:
        """Make an empty table; it takes no memory before the first row comes."""
        self.arrays = _make_arrays(1)
        self.is_changed = False
        """Whether rows came since :meth:`save`."""

    def copy(self) -> RecycledRows:
        """Return rows that change apart from these."""
        copy = RecycledRows()
        copy.arrays = RecycledArrays(self.arrays.keys.copy(), self.arrays.rows.copy())
        return copy

    def put(self, contexts: Int64Array, rows: Int64Array) -> None:
        """Take the latest rows.

        Args:
            contexts: the two tokens that each row follows, negative for none, shape ``[n, 2]``.
            rows: the target's most probable next tokens, best first, negative for none, shape ``[n, width]``.
        """
        if self.arrays.keys.size == 1:
            self.arrays = _make_arrays(NUM_SLOTS)
        _put_rows(self.arrays, contexts, rows)
        self.is_changed = True

    def save(self) -> bytes:
        """Return the rows as bytes. A row that comes meanwhile may be torn, which makes it a poor hint."""
        self.is_changed = False
        used = np.flatnonzero(self.arrays.keys >= 0)
        buffer = io.BytesIO()
        np.savez(buffer, format=_FORMAT, slots=used, keys=self.arrays.keys[used], rows=self.arrays.rows[used])
        return buffer.getvalue()

    @classmethod
    def load(cls, saved: bytes) -> RecycledRows:
        """Make the rows of :meth:`save` again.

        Raises:
            ConfigError: the bytes are not such rows, or those of another release.
        """
        table = cls()
        try:
            with np.load(io.BytesIO(saved), allow_pickle=False) as content:
                slots, keys, rows = content["slots"], content["keys"], content["rows"]
                if int(content["format"]) != _FORMAT or rows.shape != (keys.size, ROW_DEPTH * ROW_WIDTH):
                    raise ValueError("format")
                if keys.min(initial=0) < 0 or rows.min(initial=-1) < -1 or rows.max(initial=-1) >= MAX_VOCABULARY:
                    raise ValueError("rows")
                table.arrays = _make_arrays(NUM_SLOTS)
                table.arrays.keys[slots], table.arrays.rows[slots] = keys, rows
        except Exception as error:
            raise ConfigError("the saved rows are damaged or of another release; they will be learned again") from error
        return table


def _make_arrays(num_slots: int) -> RecycledArrays:
    rows = np.full((num_slots, ROW_DEPTH * ROW_WIDTH), -1, np.int32)
    return RecycledArrays(np.full(num_slots, -1, np.int64), rows)


@compiled
def _put_rows(recycled: RecycledArrays, contexts: Int64Array, rows: Int64Array) -> None:
    kept = recycled.rows
    for index in range(len(contexts)):
        last, before = contexts[index, 1], contexts[index, 0]
        if last < 0 or rows.shape[1] == 0 or rows[index, 0] < 0:
            continue
        for length in range(1, 3 if before >= 0 else 2):
            key = row_key(before, last, length)
            slot = row_slot(key, recycled.keys.size)
            if recycled.keys[slot] != key:
                recycled.keys[slot] = key
                kept[slot, :] = -1
            for place in range(ROW_DEPTH * ROW_WIDTH - 1, ROW_WIDTH - 1, -1):
                kept[slot, place] = kept[slot, place - ROW_WIDTH]
            for rank in range(ROW_WIDTH):
                kept[slot, rank] = rows[index, rank] if rank < rows.shape[1] else -1
