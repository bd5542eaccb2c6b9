"""Lets the drafter learn text that it has not read, because an engine's steps requested no drafts.

While drafts do not pay off, an engine's steps do not call the drafter. Text that is decoded meanwhile must still be
learned: another request may repeat it, and drafts would then pay off again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from speculant_graph._core import Batch, RowTracker, UnreadRow
from speculant_graph.types import DraftOptions, RowDrafter

_Ids = NDArray[np.int32]

READ_EVERY = 128
"""Number of steps without drafts after which the drafter reads all texts. The drafter reads them at the next step that
does more than match rows to sequences. The kept tail of an ended sequence has 256 tokens, which must be enough for the
sequence's text from this many steps."""
_RETRY_AFTER = 32
"""Number of steps without drafts after which a failed reading is tried again."""
_READING = DraftOptions(omit_neural=True)
_BUDGET = 1
"""Node budget of each request that only lets the drafter read text. The drafter regards the text at a session's first
draft as the prompt, and does not learn it."""
_OVERLAP = 16
"""Number of known tokens by which a drafter recognises that a text continues its session."""


class UnreadText:
    """Text that the drafter has not read.

    The drafter reads this text from time to time, and before drafting resumes.
    """

    def __init__(self, drafter: RowDrafter, tracker: RowTracker) -> None:
        """Begin without text.

        Args:
            drafter: the drafter, which reads a text when drafts for it are requested.
            tracker: the engine's sequences.
        """
        self._drafter, self._tracker = drafter, tracker
        self._ended: list[UnreadRow] = []
        self._num_steps = 0

    def keep(self, rows: Sequence[UnreadRow]) -> set[int]:
        """Keep the last tokens of ended sequences, and return the sequences' ids.

        The caller must finish these sequences after their text has been read.
        """
        self._ended += rows
        return {row.id for row in rows}

    def add_steps(self, count: int) -> None:
        """Add to the number of steps without drafts."""
        self._num_steps += count

    @property
    def is_due(self) -> bool:
        """Whether the drafter should read all texts now, because many steps had no drafts."""
        return self._num_steps >= READ_EVERY

    def read_prompts(self, batch: Batch) -> bool:
        """Let the drafter read each unread row's initial text; return whether it has read all of them."""
        lengths = zip(batch.session_ids, batch.texts, self._tracker.prompt_lengths(), strict=True)
        prompts = {session_id: text[:length] for session_id, text, length in lengths if length}
        if prompts:
            self._read(Batch(list(prompts), list(prompts.values())))
            if self._drafter.state != "ok":
                return False
            self._tracker.mark_prompts_read()
        return True

    def read(self, batch: Batch) -> None:
        """Let the drafter read the texts of a running batch; try again soon if the drafter fails."""
        self._num_steps = READ_EVERY - _RETRY_AFTER
        if self.read_prompts(batch):
            self._read(batch)
            self.mark_read()

    def mark_read(self) -> None:
        """If the drafter answered, record that it has read the latest batch's texts."""
        if self._drafter.state == "ok":
            self._tracker.mark_read()
            self._num_steps = 0

    def take_ended(self) -> list[UnreadRow]:
        """Return the kept tails of ended sequences, and remove them from this object."""
        ended, self._ended = self._ended, []
        return ended

    def read_ended(self, ended: Sequence[UnreadRow]) -> None:
        """Let the drafter read the tails of ended sequences."""
        prompts = {row.id: _prompt_of(row) for row in ended if row.read == 0}
        texts = {row.id: text for row in ended if (text := _text_of(row)).size}
        for each in (prompts, texts):
            if each:
                self._read(Batch(list(each), list(each.values())))

    def _read(self, batch: Batch) -> None:
        self._drafter.draft_rows(batch, [_BUDGET] * len(batch.session_ids), None, _READING)


def _prompt_of(row: UnreadRow) -> _Ids:
    """Return the tokens in an unread sequence's tail that belong to its initial text, at least one token."""
    tail = np.array(row.tail, np.int32)
    return tail[: max(1, row.begun - (row.size - tail.size))]


def _text_of(row: UnreadRow) -> _Ids:
    """Return a continuation of the text that the drafter has read; empty if none can be made.

    If nothing of a sequence was read, the text is the sequence's tail. For a partly read sequence, zeros replace the
    tokens before its tail. The text must have the right length, but the drafter looks only at the last tokens that it
    has read and at later tokens.
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
