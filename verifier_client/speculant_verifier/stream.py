"""Text from tokens as they come: a character is shown when all of its bytes are there."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from speculant_graph.types import TokenId

_REPLACEMENT = "\ufffd"


class TextStream:
    """Decodes a growing token sequence incrementally.

    Only the tokens since the last settled place are decoded again, with a little context before them, because byte
    pieces and leading spaces depend on their neighbours.
    """

    def __init__(self, decode: Callable[[Sequence[TokenId]], str]) -> None:
        """Start with no tokens; ``decode`` turns token ids into text."""
        self._decode = decode
        self._token_ids: list[TokenId] = []
        self._context_start = 0
        self._settled = 0

    def push(self, token_ids: Sequence[TokenId], *, final: bool = False) -> str:
        """Add tokens and return the text that became certain; with ``final`` whatever is left."""
        if not token_ids and not final:
            return ""  # moving on without a token would lose the context that leading spaces depend on
        self._token_ids += token_ids
        context = self._decode(self._token_ids[self._context_start : self._settled])
        text = self._decode(self._token_ids[self._context_start :])
        if not final and text.endswith(_REPLACEMENT):
            return ""
        self._context_start, self._settled = self._settled, len(self._token_ids)
        return text[len(context) :]
