"""Text from tokens as they come: a character is shown when all of its bytes are there, and no stop text began in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy

from speculant_graph.types import TokenId

_REPLACEMENT = "\ufffd"


class Detokenizer:
    """Decodes a growing token sequence incrementally, up to the first stop text.

    Only the tokens since the last committed position are decoded again, with a little context before them, because byte
    pieces and leading spaces depend on their neighbours.
    """

    def __init__(self, decode: Callable[[Sequence[TokenId]], str], stop: Sequence[str] = ()) -> None:
        """Start with no tokens.

        Args:
            decode: turns token ids into text.
            stop: the text ends before any of these, none of them empty.
        """
        self._decode = decode
        self._stop = tuple(stop)
        self._token_ids: tuple[TokenId, ...] = ()
        self._num_context = 0  # of the tokens, those that are context
        self._num_shown = 0  # characters behind the context that went on already
        self._held = ""  # what may be the beginning of a stop text
        self.is_complete = False
        """Whether a stop text was found; nothing comes after it."""

    def push(self, token_ids: Sequence[TokenId], *, final: bool = False) -> str:
        """Add tokens and return the text that became certain; with ``final`` whatever is left."""
        if self.is_complete:
            return ""
        text = self._held + self._new_text(token_ids, final=final)
        end = end_of(text, self._stop)
        if end is not None:
            self.is_complete, self._held = True, ""
            return text[:end]
        num_held = 0 if final else self._num_uncertain(text)
        self._held = text[len(text) - num_held :]
        return text[: len(text) - num_held]

    def stop_within(self, token_ids: Sequence[TokenId]) -> int | None:
        """Add tokens; return how many of them belong to the output if a stop text is complete with them.

        If several are complete at the same token, the text ends before the one that begins first.
        """
        before = copy(self)
        self.push(token_ids)
        if not self.is_complete:
            return None
        for count, token in enumerate(token_ids, 1):
            before.push([token])
            if before.is_complete:
                return count
        return len(token_ids)  # some decoders tidy up spaces, and may find less in the same tokens one by one

    def _new_text(self, token_ids: Sequence[TokenId], *, final: bool) -> str:
        if not token_ids and not final:
            return ""  # moving on without a token would lose the context that leading spaces depend on
        self._token_ids += tuple(token_ids)
        start = len(self._decode(self._token_ids[: self._num_context])) + self._num_shown
        text = self._decode(self._token_ids)
        # Replacement characters at the end may be the first bytes of a character.
        certain = text if final else text.rstrip(_REPLACEMENT)
        if len(certain) == len(text):
            self._token_ids = self._token_ids[self._num_context :]
            self._num_context, self._num_shown = len(self._token_ids), 0
        else:
            self._num_shown += max(0, len(certain) - start)
        return certain[start:]

    def _num_uncertain(self, text: str) -> int:
        """Return the length of the longest end of the text that a stop text begins with."""
        longest = max((len(stop) for stop in self._stop), default=1) - 1
        for size in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-size:]) for stop in self._stop):
                return size
        return 0


def end_of(text: str, stop: Sequence[str]) -> int | None:
    """Return where the first of some stop texts begins; None if there is none."""
    return min((index for each in stop if (index := text.find(each)) >= 0), default=None)
