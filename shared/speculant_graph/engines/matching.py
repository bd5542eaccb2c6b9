"""Which sequence stands in which row of an engine's batch.

Rows move, are used again, and equal prompts stand side by side; most engines do not say whose they are. So a sequence
is recognised by its text: a row goes on with one whose whole text it begins with, and which it exceeds by no more than
one step can add. A row that goes on with none begins a new one, and a sequence that no row goes on with has ended: one
that comes back, after the engine had put it off, begins again with the text that it has.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from speculant_graph.types import TokenId

Tokens = NDArray[np.int32]
_TAIL = 16


@dataclass(frozen=True, slots=True, eq=False)
class EngineRow:
    """One sequence as the engine has it before its next pass."""

    token_ids: Sequence[TokenId] | NDArray[np.integer]
    """The whole text so far, prompt included."""
    room: int
    """Most tokens that may be drafted."""
    place: int = 0
    """Where it stands in the engine's batch; most rows stay where they are."""
    request_id: str | None = None
    """Whose it is, if the engine says so."""
    tenant: str | None = None
    """Whose text it is; None is the drafter's own setting."""


class TrackedSequence:
    """A sequence that an engine decodes, and a copy of its text: the engine may change its own at any time."""

    __slots__ = ("_buffer", "_length", "is_new", "place", "request_id", "session_id")

    def __init__(self, session_id: int, row: EngineRow, token_ids: Tokens) -> None:
        """Begin with the text of a row.

        Args:
            session_id: its session with the drafter.
            row: where the engine has it.
            token_ids: the row's whole text, as an array.
        """
        self.session_id = session_id
        self.request_id = row.request_id
        self.is_new = True
        """Whether nothing was asked for it yet."""
        self._buffer = np.empty(max(2 * token_ids.size, 256), np.int32)
        self._length = 0
        self.go_on(row, token_ids)

    @property
    def text(self) -> Tokens:
        """All tokens; later ones do not change it."""
        return self._buffer[: self._length]

    def tail(self) -> bytes:
        """Return what a row that goes on with it has where its text ends."""
        return self._buffer[max(self._length - _TAIL, 0) : self._length].tobytes()

    def is_begun_by(self, token_ids: Tokens, most_new: int) -> bool:
        """Return whether a row goes on with it, by at most so many tokens."""
        length = self._length
        return length <= token_ids.size <= length + most_new and bool((token_ids[:length] == self.text).all())

    def go_on(self, row: EngineRow, token_ids: Tokens) -> None:
        """Take what is new of a row's text."""
        if token_ids.size > self._buffer.size:
            longer = np.empty(2 * token_ids.size, np.int32)
            longer[: self._length] = self.text
            self._buffer = longer  # whoever looks at the old text has the old one
        self._buffer[self._length : token_ids.size] = token_ids[self._length :]
        self._length = token_ids.size
        self.place = row.place


class SequenceTracker:
    """The sequences of the batch as it was at the last call."""

    def __init__(self, most_new: int) -> None:
        """Begin without sequences.

        Args:
            most_new: most tokens that a pass may add to one.
        """
        self._most_new = most_new
        self._by_key: dict[int | str, TrackedSequence] = {}  # by request, or by place
        self._ids = itertools.count(1)

    def match(self, rows: Sequence[EngineRow]) -> tuple[list[TrackedSequence], int, list[TrackedSequence]]:
        """Say which sequence stands in each row of the batch, and take what is new of its text.

        Returns:
            The sequence of every row, how many of them are new, and the ones that have ended.
        """
        texts = [np.asarray(row.token_ids, np.int32) for row in rows]
        found: list[TrackedSequence | None] = []
        unclaimed = dict.fromkeys(self._by_key.values())
        for row, text in zip(rows, texts, strict=True):
            there = self._by_key.get(_key_of(row))
            if there is not None and there in unclaimed and there.is_begun_by(text, self._most_new):
                found.append(there)
                del unclaimed[there]
            else:
                found.append(None)
        if unclaimed and None in found:
            by_tail: dict[bytes, list[TrackedSequence]] = {}
            for each in unclaimed:
                by_tail.setdefault(each.tail(), []).append(each)
            for index, (row, text) in enumerate(zip(rows, texts, strict=True)):
                if found[index] is None and row.request_id is None:
                    found[index] = _moved(text, by_tail, self._most_new, unclaimed)
        num_new, sequences = 0, []
        for row, text, sequence in zip(rows, texts, found, strict=True):
            if sequence is None:
                num_new += 1
                sequence = TrackedSequence(next(self._ids), row, text)
            else:
                sequence.go_on(row, text)
            sequences.append(sequence)
        self._by_key = {_key_of(sequence): sequence for sequence in sequences}
        return sequences, num_new, list(unclaimed)


def _key_of(of: EngineRow | TrackedSequence) -> int | str:
    return of.place if of.request_id is None else of.request_id


def _moved(
    text: Tokens,
    by_tail: dict[bytes, list[TrackedSequence]],
    most_new: int,
    unclaimed: dict[TrackedSequence, None],
) -> TrackedSequence | None:
    """Return the longest sequence that a text goes on with, of those that no row has claimed."""
    for length in range(text.size, max(text.size - most_new, 1) - 1, -1):
        for each in by_tail.get(text[max(length - _TAIL, 0) : length].tobytes(), ()):
            if each in unclaimed and each.is_begun_by(text, most_new):
                del unclaimed[each]
                return each
    return None
