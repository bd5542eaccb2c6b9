"""Answers of models that write calls as JSON between two marks: content, and calls."""

from __future__ import annotations

import json
from collections.abc import Sequence

from speculant_graph.serving.json_body import escape_half_pairs
from speculant_graph.types import TokenId
from speculant_verifier.conversation.tool_calls import Piece, joined


class JsonCalls:
    """Splits an answer into text and calls. How it is cut into pieces makes no difference.

    A call comes when it is complete. What only looks like one stays text, and so does a call that was cut off.
    """

    def __init__(self, mark: str, end: str) -> None:
        """Begin.

        Args:
            mark: comes before a call.
            end: comes after it; behind the last one it may be missing.
        """
        self._mark, self._end = mark, end
        self._held = ""  # what may be a call, the beginning of a mark, or spaces between calls
        self._is_behind_call = False

    def push(self, token_ids: Sequence[TokenId], text: str, *, final: bool = False) -> list[Piece]:
        """Add what a step emitted; return what became certain.

        Args:
            token_ids: not looked at.
            text: the text that became certain by them.
            final: whether it is all.
        """
        del token_ids
        self._held += text
        pieces: list[Piece] = []
        while (start := self._held.find(self._mark)) >= 0:
            body, end, rest = self._held[start + len(self._mark) :].partition(self._end)
            if not end and not final:
                break
            call = _call(body)
            if call is None:
                pieces.append(("content", self._held[: len(self._held) - len(rest)]))
            else:
                pieces += [*self._content(self._held[:start]), ("name", call[0]), ("arguments", call[1])]
            self._held, self._is_behind_call = rest, call is not None
        if start < 0:
            start = len(self._held) - (0 if final else self._num_uncertain())
        if final or not self._is_behind_call or self._held[:start].strip():
            pieces += self._content(self._held[:start])
            self._held, self._is_behind_call = self._held[start:], False
        return joined(pieces)

    def _content(self, text: str) -> list[Piece]:
        """Return text before a call or at the end; what is blank behind a call belongs to neither."""
        return [("content", text)] if text and (text.strip() or not self._is_behind_call) else []

    def _num_uncertain(self) -> int:
        """Return the length of the longest end of the text that a mark begins with."""
        sizes = range(min(len(self._mark) - 1, len(self._held)), 0, -1)
        return next((size for size in sizes if self._mark.startswith(self._held[-size:])), 0)


def _call(body: str) -> tuple[str, str] | None:
    """Return the name and the arguments of a call; None if it is none."""
    try:
        call = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return None
    # The model may spell half of a surrogate pair; its client gets it as the model wrote it.
    arguments = json.dumps(call.get("arguments", {}), ensure_ascii=False)
    return escape_half_pairs(call["name"]), escape_half_pairs(arguments)
