"""The table of open sessions that the server's kernel works on: a row for each, found by its id."""

from __future__ import annotations

from typing import Any

import numpy as np

from speculant_graph.draft.views import NUM_OWN_HANDLES
from speculant_graph.graph.compiled import Integer, compiled, inlined
from speculant_graph.graph.layout import Int64Array

SESSION_ID, POSITION, LAST_USED, IDLE_TIMEOUT, GRAPH, TENANT, IS_PLAIN, STEPS, DRAFTED, MARK = range(10)
"""Columns: id; tokens taken; time of the latest step and how long there may be none, nanoseconds;
generation of its graph; number of its tenant; 1 if it is served by the kernel; steps; nodes drafted; the step that it
was last part of."""
_NUM_COLUMNS = 10

_FREE, _USED_BEFORE = 0, -1
_MULTIPLIER = np.int64(0x1E3779B97F4A7C15)
_FIRST_CAPACITY = 64
_NEVER = np.iinfo(np.int64).max


@inlined
def _first_place(index: Int64Array, session_id: Integer) -> Any:
    value = session_id * _MULTIPLIER
    return (value ^ (value >> np.int64(32))) & (index.size - 1)


@inlined
def find_row(index: Int64Array, rows: Int64Array, session_id: Integer) -> Any:
    """Return the row of an open session, or -1."""
    place = _first_place(index, session_id)
    while index[place] != _FREE:
        row = index[place] - 1
        if row >= 0 and rows[row, SESSION_ID] == session_id:
            return row
        place = (place + 1) & (index.size - 1)
    return np.int64(-1)


@compiled
def _put(index: Int64Array, session_id: int, row: int) -> None:
    place = _first_place(index, session_id)
    while index[place] > _FREE:
        place = (place + 1) & (index.size - 1)
    index[place] = row + 1


@compiled
def _discard(index: Int64Array, session_id: int, row: int) -> None:
    place = _first_place(index, session_id)
    while index[place] != _FREE:
        if index[place] == row + 1:
            index[place] = _USED_BEFORE
            return
        place = (place + 1) & (index.size - 1)


class SessionRows:
    """Rows that are taken and given back. Memory grows with the most sessions that were ever open."""

    def __init__(self) -> None:
        """Make an empty table."""
        self.rows: Int64Array = np.zeros((_FIRST_CAPACITY, _NUM_COLUMNS), np.int64)
        """One session a row."""
        self.handles: Int64Array = np.zeros((_FIRST_CAPACITY, NUM_OWN_HANDLES), np.int64)
        """Per row, what :func:`~speculant_graph.draft.views.open_own_history` opens."""
        self.index: Int64Array = np.zeros(4 * _FIRST_CAPACITY, np.int64)
        """Hash table of row numbers plus 1."""
        self._free = list(range(_FIRST_CAPACITY))
        self._num_used = 0  # places of the index that are not free

    def add(self, session_id: int) -> int:
        """Take a row for a session whose id, from 0 below 2**64, has none; return its number."""
        if not self._free:
            self._grow()
        elif 2 * self._num_used > self.index.size:
            self._index_again(self.index.size)
        row = self._free.pop()
        self.rows[row] = 0
        self.rows[row, SESSION_ID] = signed(session_id)
        _put(self.index, signed(session_id), row)
        self._num_used += 1
        return row

    def remove(self, row: int) -> None:
        """Give a row back."""
        _discard(self.index, int(self.rows[row, SESSION_ID]), row)
        self.rows[row] = 0
        self._free.append(row)

    def longest_idle(self, spared: int | None = None) -> int | None:
        """Return the id of the session whose latest step is the longest ago, or None.

        Args:
            spared: id of a session that does not count.
        """
        last_used = np.where(self.rows[:, SESSION_ID] == 0, _NEVER, self.rows[:, LAST_USED])  # 0 is nobody's id
        if spared is not None:
            last_used[self.rows[:, SESSION_ID] == signed(spared)] = _NEVER
        row = int(last_used.argmin())
        return None if last_used[row] == _NEVER else int(self.rows[row, SESSION_ID]) % (1 << 64)

    def warm_up(self) -> None:
        """Compile or load kernels, so that the first session does not wait for them."""
        self.remove(self.add(1))

    def _grow(self) -> None:
        capacity = len(self.rows)
        self.rows = np.concatenate((self.rows, np.zeros_like(self.rows)))
        self.handles = np.concatenate((self.handles, np.zeros_like(self.handles)))
        self._free = list(range(capacity, 2 * capacity))
        self._index_again(2 * self.index.size)

    def _index_again(self, size: int) -> None:
        taken = self.index[self.index > _FREE] - 1
        self.index = np.zeros(size, np.int64)
        for row in taken.tolist():
            _put(self.index, int(self.rows[row, SESSION_ID]), row)
        self._num_used = taken.size


def signed(number: int) -> int:
    """Return a number below 2**64 as the signed number of the same bits."""
    return number - (1 << 64) if number >> 63 else number
