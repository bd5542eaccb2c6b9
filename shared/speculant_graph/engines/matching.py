"""Which sequence is in which row of an engine's batch.

Rows move, are used again, and equal prompts stand side by side; most engines do not name their requests. So a sequence
is recognised by its text: a row goes on with the longest one whose whole text it begins with, and which it exceeds by
no more than one step can add. A row that goes on with none begins a new one, and a sequence that no row goes on with
has ended: one that comes back, after the engine had put it off, begins again with the text that it has.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
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
    capacity: int
    """Most tokens that may be drafted."""
    request_id: str | None = None
    """Its request, if the engine names it."""
    tenant: str | None = None
    """The tenant of the text; None is the drafter's own setting."""


class TrackedSequence:
    """A sequence that an engine decodes, and a copy of its text: the engine may change its own at any time."""

    def __init__(self, session_id: int, request_id: str | None, token_ids: Tokens) -> None:
        """Begin with a text.

        Args:
            session_id: its session with the drafter.
            request_id: its request's, if the engine names it.
            token_ids: the whole text.
        """
        self.session_id = session_id
        self.request_id = request_id
        self.is_new = True
        """Whether nothing was asked for it yet."""
        self._buffer = np.empty(max(2 * token_ids.size, 256), np.int32)
        self._length = 0
        self.extend(token_ids)

    @property
    def text(self) -> Tokens:
        """All tokens; later ones do not change it."""
        return self._buffer[: self._length]

    @property
    def key(self) -> str | bytes:
        """What a row that goes on with it is found by: its request, or its last tokens."""
        return self.text[-_TAIL:].tobytes() if self.request_id is None else self.request_id

    def is_begun_by(self, token_ids: Tokens, most_new: int) -> bool:
        """Return whether a row goes on with it, by at most so many tokens."""
        length = self._length
        return length <= token_ids.size <= length + most_new and bool((token_ids[:length] == self.text).all())

    def extend(self, token_ids: Tokens) -> None:
        """Take what is new of its whole text."""
        if token_ids.size > self._buffer.size:
            longer = np.empty(2 * token_ids.size, np.int32)
            longer[: self._length] = self.text
            self._buffer = longer  # views of the old text keep the old one
        self._buffer[self._length : token_ids.size] = token_ids[self._length :]
        self._length = token_ids.size


class SequenceTracker:
    """The sequences of the batch as it was at the last call."""

    def __init__(self, most_new: int) -> None:
        """Begin without sequences.

        Args:
            most_new: most tokens that a pass may add to one.
        """
        self._most_new = most_new
        self._sequences: list[TrackedSequence] = []
        self._ids = itertools.count(1)

    def match(self, rows: Sequence[EngineRow]) -> tuple[list[TrackedSequence], list[TrackedSequence]]:
        """Find the sequence of every row of the batch, and take what is new of its text.

        Returns:
            The sequence of every row, and those that have ended.
        """
        unclaimed: dict[str | bytes, list[TrackedSequence]] = {}
        for each in self._sequences:
            unclaimed.setdefault(each.key, []).append(each)
        self._sequences = []
        for row in rows:
            text = np.asarray(row.token_ids, np.int32)
            sequence = self._claim(row, text, unclaimed)
            if sequence is None:
                sequence = TrackedSequence(next(self._ids), row.request_id, text)
            else:
                sequence.extend(text)
            self._sequences.append(sequence)
        return self._sequences, list(itertools.chain.from_iterable(unclaimed.values()))

    def _claim(
        self, row: EngineRow, text: Tokens, unclaimed: dict[str | bytes, list[TrackedSequence]]
    ) -> TrackedSequence | None:
        """Return the longest sequence that a row goes on with, of those that no row has claimed."""
        for key in self._keys(row, text):
            candidates = unclaimed.get(key, [])
            for index, each in enumerate(candidates):
                if each.is_begun_by(text, self._most_new):
                    return candidates.pop(index)
        return None

    def _keys(self, row: EngineRow, text: Tokens) -> Iterator[str | bytes]:
        if row.request_id is not None:
            yield row.request_id
            return
        for length in range(text.size, max(text.size - self._most_new, 1) - 1, -1):
            yield text[max(length - _TAIL, 0) : length].tobytes()
