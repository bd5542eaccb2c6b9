"""Reads text for learning that no draft has read, because an engine's steps had no drafts.

While drafts do not pay, an engine's steps do not call the drafter. The text of these steps must be learned all the
same: another request may repeat it, and drafts would then pay again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from speculant_graph._core import Batch, RowTracker, UnreadRow
from speculant_graph.types import DraftOptions, RowDrafter

_Ids = NDArray[np.int32]

READ_EVERY = 128
"""Number of steps without drafts after which the drafter reads all texts, at the next step that is not merely followed.
The kept tails of ended sequences, which have 256 tokens, must contain the text of all these steps."""
_RETRY_AFTER = 32
"""Number of steps after which a failed reading is repeated."""
_READING = DraftOptions(omit_neural=True)
_BUDGET = 1
"""Budget of every reading. The text up to a session's first draft is its prompt, which is not learned."""
_OVERLAP = 16
"""Number of known tokens by which a drafter recognises that a text continues a session's."""


class UnreadText:
    """The unread text of an engine's sequences: it is read from time to time, and before drafts are made again."""

    def __init__(self, drafter: RowDrafter, tracker: RowTracker) -> None:
        """Begin without text.

        Args:
            drafter: reads the text when drafts are requested.
            tracker: the engine's sequences.
        """
        self._drafter, self._tracker = drafter, tracker
        self._ended: list[UnreadRow] = []
        self._num_steps = 0

    def keep(self, rows: Sequence[UnreadRow]) -> set[int]:
        """Keep the ends of ended sequences; return their ids. They must be finished after they have been read."""
        self._ended += rows
        return {row.id for row in rows}

    def add_steps(self, count: int) -> None:
        """Count steps without drafts."""
        self._num_steps += count

    @property
    def is_due(self) -> bool:
        """Whether the drafter should read all texts."""
        return self._num_steps >= READ_EVERY

    def read_prompts(self, batch: Batch) -> bool:
        """Read the texts with which unread sequences of a running batch began; return whether the drafter has them."""
        lengths = zip(batch.session_ids, batch.texts, self._tracker.prompt_lengths(), strict=True)
        prompts = {session_id: text[:length] for session_id, text, length in lengths if length}
        if prompts:
            self._read(Batch(list(prompts), list(prompts.values())))
            if self._drafter.state != "ok":
                return False
            self._tracker.mark_prompts_read()
        return True

    def read(self, batch: Batch) -> None:
        """Read the texts of a running batch; try again soon if the drafter fails."""
        self._num_steps = READ_EVERY - _RETRY_AFTER
        if self.read_prompts(batch):
            self._read(batch)
            self.mark_read()

    def mark_read(self) -> None:
        """Record that the drafter has read the texts of the latest batch, unless it did not answer."""
        if self._drafter.state == "ok":
            self._tracker.mark_read()
            self._num_steps = 0

    def take_ended(self) -> list[UnreadRow]:
        """Return the kept ends of ended sequences, and keep them no longer."""
        ended, self._ended = self._ended, []
        return ended

    def read_ended(self, ended: Sequence[UnreadRow]) -> None:
        """Read the ends of ended sequences."""
        prompts = {row.id: _prompt_of(row) for row in ended if row.read == 0}
        texts = {row.id: text for row in ended if (text := _text_of(row)).size}
        for each in (prompts, texts):
            if each:
                self._read(Batch(list(each), list(each.values())))

    def _read(self, batch: Batch) -> None:
        self._drafter.draft_rows(batch, [_BUDGET] * len(batch.session_ids), None, _READING)


def _prompt_of(row: UnreadRow) -> _Ids:
    """Return the part of an unread sequence's tail with which it began, but at least one token."""
    tail = np.array(row.tail, np.int32)
    return tail[: max(1, row.begun - (row.size - tail.size))]


def _text_of(row: UnreadRow) -> _Ids:
    """Return a text that continues what the drafter has read; empty if that is not possible.

    A sequence of which nothing was read begins with its tail. Other texts need the right length, but the drafter looks
    only at the last tokens that it has read and at later ones.
    """
    tail = np.array(row.tail, np.int32)
    before = row.size - tail.size
    if row.read == 0:
        return tail
    if before and before > row.read - _OVERLAP:
        return tail[:0]
    text = np.zeros(row.size, np.int32)
    text[before:] = tail
    return text
