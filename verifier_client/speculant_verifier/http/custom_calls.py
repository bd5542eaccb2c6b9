"""Calls of custom tools, whose input is text: taken out of the JSON that a model may have put it in."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Literal

from speculant_verifier.conversation.tool_calls import Piece, PieceKind
from speculant_verifier.http.tools import INPUT

AnswerPiece = tuple[PieceKind | Literal["custom", "input"], str]
"""A kind and text of it: of what models write, or of a custom tool its name, which begins a call, and its input."""


class CustomCalls:
    """Makes calls of custom tools out of those that a splitter finds. How they are cut makes no difference.

    What the model writes is the input, unless it is JSON of an object with nothing but that: then it comes when the
    call is over.
    """

    def __init__(self, names: Collection[str]) -> None:
        """Begin.

        Args:
            names: of the custom tools.
        """
        self._names = names
        self._is_custom = self._is_raw = False
        self._held = ""

    def push(self, pieces: Sequence[Piece], *, final: bool) -> list[AnswerPiece]:
        """Add pieces of an answer; return what became certain.

        Args:
            pieces: as a splitter returned them.
            final: whether it is all.
        """
        taken: list[AnswerPiece] = []
        for kind, text in pieces:
            if kind == "arguments" and self._is_custom:
                self._held += text
                self._is_raw = self._is_raw or (
                    not self._held.lstrip().startswith("{", 0, 1) and bool(self._held.strip())
                )
                if self._is_raw:
                    taken.append(("input", self._held))
                    self._held = ""
                continue
            taken += self._end()
            if kind == "name" and text in self._names:
                self._is_custom = True
                taken.append(("custom", text))
            else:
                taken.append((kind, text))
        return [*taken, *self._end()] if final else taken

    def _end(self) -> list[AnswerPiece]:
        held, self._held, self._is_custom, self._is_raw = self._held, "", False, False
        text = input_of(held)
        return [("input", text)] if text else []


def input_of(written: str) -> str:
    """Return the input that a model means with what it wrote after the header of a call."""
    try:
        value = json.loads(written)
    except (ValueError, RecursionError):
        return written
    if isinstance(value, dict) and value.keys() <= {INPUT} and isinstance(value.get(INPUT, ""), str):
        return str(value.get(INPUT, ""))
    return written
