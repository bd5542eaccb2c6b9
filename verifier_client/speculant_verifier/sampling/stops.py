"""Where a request's text ends: at the first token that completes one of its stop texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from speculant_graph.types import TokenId
from speculant_verifier.stream import TextStream


@dataclass(frozen=True, slots=True)
class Stop:
    """The end of a text within the tokens of a step."""

    num_tokens: int
    """How many of the step's tokens belong to the output, the one that ends it included."""
    text: str
    """All of the output's text, up to before the stop text."""


class StopStrings:
    """Finds stop texts in the output of one request, whichever tokens and steps they are spread over."""

    def __init__(self, decode: Callable[[Sequence[TokenId]], str], strings: Sequence[str]) -> None:
        """Start with no tokens.

        Args:
            decode: turns token ids into text.
            strings: the stop texts, none of them empty.
        """
        self._stream = TextStream(decode, strings)
        self._pieces: list[str] = []

    def push(self, token_ids: Sequence[TokenId]) -> Stop | None:
        """Add the tokens that a step emitted; return where the text ends, if it does.

        If several stop texts are complete at the same token, the text ends before the one that begins first.
        """
        before = self._stream.copy()
        piece = self._stream.push(token_ids)
        if not self._stream.is_complete:
            self._pieces.append(piece)
            return None
        pieces = [*self._pieces]
        for num_tokens, token in enumerate(token_ids, 1):
            pieces.append(before.push([token]))
            if before.is_complete:
                return Stop(num_tokens, "".join(pieces))
        # Some decoders tidy up spaces, and may find less in the same tokens one by one.
        return Stop(len(token_ids), "".join((*self._pieces, piece)))
