"""Text from tokens as they come: a character is shown when all of its bytes are there, and no stop text began in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Self

from speculant_graph.types import TokenId

_REPLACEMENT = "\ufffd"


class TextStream:
    """Decodes a growing token sequence incrementally, up to the first stop text.

    Only the tokens since the last settled place are decoded again, with a little context before them, because byte
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
        self._settled = 0
        """How many of the tokens are context."""
        self._num_shown = 0
        """Characters behind the context that went on already."""
        self._held = ""
        """What may be the beginning of a stop text."""
        self.is_complete = False
        """Whether a stop text was found; nothing comes after it."""

    def push(self, token_ids: Sequence[TokenId], *, final: bool = False) -> str:
        """Add tokens and return the text that became certain; with ``final`` whatever is left."""
        if self.is_complete:
            return ""
        text = self._held + self._new_text(token_ids, final=final)
        places = [place for stop in self._stop if (place := text.find(stop)) >= 0]
        if places:
            self.is_complete, self._held = True, ""
            return text[: min(places)]
        num_held = 0 if final else self._num_uncertain(text)
        self._held = text[len(text) - num_held :]
        return text[: len(text) - num_held]

    def copy(self) -> Self:
        """Return a stream that goes on from here on its own."""
        other = type(self)(self._decode, self._stop)
        other._token_ids, other._settled, other._num_shown = self._token_ids, self._settled, self._num_shown
        other._held, other.is_complete = self._held, self.is_complete
        return other

    def _new_text(self, token_ids: Sequence[TokenId], *, final: bool) -> str:
        if not token_ids and not final:
            return ""  # moving on without a token would lose the context that leading spaces depend on
        self._token_ids += tuple(token_ids)
        start = len(self._decode(self._token_ids[: self._settled])) + self._num_shown
        text = self._decode(self._token_ids)
        # Replacement characters at the end may be the first bytes of a character.
        certain = text if final else text.rstrip(_REPLACEMENT)
        if len(certain) == len(text):
            self._token_ids = self._token_ids[self._settled :]
            self._settled, self._num_shown = len(self._token_ids), 0
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
