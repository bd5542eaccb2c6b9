"""Extracts the input text from calls of custom tools; the model may have written the input as JSON."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Literal

from speculant_verifier.conversation.tool_calls import Piece, PieceKind
from speculant_verifier.http.tools import INPUT

AnswerPiece = tuple[PieceKind | Literal["custom", "input"], str]
"""Kind and text of one piece of an answer. A piece of kind "custom" begins a call, and its text is the name of a custom
tool. The text of a piece of kind "input" is part of the call's input."""


class CustomCalls:
    """Finds the calls of custom tools among a splitter's pieces, however the text is divided into pieces.

    The model's text is the input, unless it is a JSON object whose only field is the input. If the model's text is such
    a JSON object, the input is extracted when the call ends.
    """

    def __init__(self, names: Collection[str]) -> None:
        """Begin.

        Args:
            names: names of the custom tools.
        """
        self._names = names
        self._is_custom = self._is_raw = False
        self._held = ""

    def push(self, pieces: Sequence[Piece], *, final: bool) -> list[AnswerPiece]:
        """Add pieces from the splitter; return the pieces of the answer that can no longer change.

        Args:
            pieces: pieces from the splitter.
            final: whether the answer has ended.
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
    """Return a custom tool's input, extracted from the text that the model wrote after the call's header."""
    try:
        value = json.loads(written)
    except (ValueError, RecursionError):
        return written
    if isinstance(value, dict) and value.keys() <= {INPUT} and isinstance(value.get(INPUT, ""), str):
        return str(value.get(INPUT, ""))
    return written
