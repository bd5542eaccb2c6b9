"""What an answer consists of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from speculant_graph.types import TokenId

PieceKind = Literal["reasoning", "content", "name", "arguments"]
"""Reasoning, content, the name of a called tool, which begins a call, and more of its arguments, as JSON text."""

Piece = tuple[PieceKind, str]
"""A kind and text of it."""


class Splitter(Protocol):
    """Splits one answer as it comes."""

    def push(self, token_ids: Sequence[TokenId], text: str, *, final: bool = False) -> list[Piece]:
        """Add what a step emitted; return what became certain."""


def joined(pieces: Sequence[Piece]) -> list[Piece]:
    """Put neighbours of a kind together, but for names."""
    joined: list[Piece] = []
    for kind, text in pieces:
        if joined and joined[-1][0] == kind != "name":
            joined[-1] = kind, joined[-1][1] + text
        else:
            joined.append((kind, text))
    return joined
