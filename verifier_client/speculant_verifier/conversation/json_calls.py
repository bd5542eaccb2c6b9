"""Splits answers into content and tool calls, for models that write calls as JSON between two marks."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Literal

from speculant_graph.serving.json_body import escape_half_pairs
from speculant_graph.types import TokenId
from speculant_verifier.conversation.tool_calls import Piece, joined

_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"arguments"\s*:\s*(?=\{)', re.DOTALL)
"""Matches a tool call up to its arguments, so that the arguments can be streamed."""
_IN_STRING = re.compile(r'["\\]')
_DECODER = json.JSONDecoder(strict=False)


class JsonCalls:
    """Splits an answer into content and tool calls. The result is the same however the answer is divided into steps.

    The arguments of a call are streamed if the tool's name precedes them. Otherwise they are returned when the call is
    complete. Text that only looks like a tool call stays content.
    """

    def __init__(self, mark: str, end: str) -> None:
        """Begin.

        Args:
            mark: the mark before a call.
            end: the mark after a call, which may be missing.
        """
        self._mark, self._end = mark, end
        self._held = ""  # text that is not final yet
        self._blank = ""  # whitespace between a call and a mark
        self._is_behind_call = self._is_cut = False
        self._scanner = _Scanner(end)
        self._step = self._text
        self._pieces: list[Piece] = []
        self.ends_in_call = False

    def push(
        self, token_ids: Sequence[TokenId], text: str, *, final: bool = False, is_cut: bool = False
    ) -> list[Piece]:
        """Add the output of a decoding step; return the pieces that can no longer change.

        Args:
            token_ids: unused.
            text: the text that became final in this step.
            final: whether the answer is complete.
            is_cut: whether a limit ended the answer; if so, a call without a name is dropped.
        """
        del token_ids
        self._is_cut = is_cut
        self._held += text
        while self._step(final=final):
            pass
        pieces, self._pieces = joined(self._pieces), []
        return pieces

    def _text(self, *, final: bool) -> bool:
        """Search for the mark that precedes a tool call."""
        start = self._held.find(self._mark)
        if start >= 0:
            before, self._held = self._held[:start], self._held[start + len(self._mark) :]
            if self._is_behind_call and not before.strip():
                self._blank = before
            else:
                self._add_content(before)
            self._scanner, self._step = _Scanner(self._end), self._body
            return True
        size = len(self._held) - (0 if final else _num_uncertain(self._held, self._mark))
        if not self._is_behind_call or self._held[:size].strip():
            self._add_content(self._held[:size])
            self._held = self._held[size:]
        return False

    def _body(self, *, final: bool) -> bool:
        """Search for a call's name and arguments; if the text is not a call, search for the end mark."""
        head = _HEAD.match(self._held)
        if head is not None and (name := _decoded(head[1])) is not None:
            self._begin(str(name))
            self._held, self._scanner, self._step = self._held[head.end() :], _Scanner(self._end), self._arguments
            return True
        start = self._held.lstrip()
        if not start:
            return final and self._is_half_call_or_text()
        if not start.startswith("{"):
            return self._is_text_up_to_end(final=final)
        found = self._scanner.run(self._held)
        if found == "mark":
            return self._is_text(self._scanner.at + len(self._end))
        if found is None:
            return final and self._is_half_call_or_text()
        after = self._held[self._scanner.at :].lstrip()
        if not after.startswith(self._end):
            if self._end.startswith(after) and not (final and not after):
                return final and self._is_half_call_or_text()
            if after:
                return self._is_text_up_to_end(final=final)
        call = _call(self._held[: self._scanner.at])
        if call is None:
            return self._is_text_up_to_end(final=final)
        self._begin(call[0])
        self._pieces.append(("arguments", call[1]))
        self._held = after.removeprefix(self._end)
        self._end_call()
        return True

    def _arguments(self, *, final: bool) -> bool:
        """Stream the arguments of a call."""
        found = self._scanner.run(self._held)
        size = len(self._held) if final and found is None else self._scanner.at
        if size:
            self._pieces.append(("arguments", self._held[:size]))
        self._held, self._scanner.at = self._held[size:], 0
        if found is None:
            return False
        self.ends_in_call = True
        self._scanner = _Scanner(self._end, depth=1)
        self._step = self._after_arguments if found == "value" else self._behind_body
        return True

    def _after_arguments(self, *, final: bool) -> bool:
        """Skip the rest of a call after its arguments."""
        found = self._scanner.run(self._held)
        self._held = "" if final and found is None else self._held[self._scanner.at :]
        self._scanner.at = 0
        if found is not None:
            self._step = self._behind_body
        return found is not None

    def _behind_body(self, *, final: bool) -> bool:
        """Skip the end mark after a tool call."""
        after = self._held.lstrip()
        if not final and len(after) < len(self._end) and self._end.startswith(after):
            return False
        if after.startswith(self._end):
            self._held = after.removeprefix(self._end)
        self._end_call()
        return True

    def _begin(self, name: str) -> None:
        self._pieces.append(("name", escape_half_pairs(name)))  # the model may write a lone surrogate
        self._blank, self.ends_in_call = "", False

    def _end_call(self) -> None:
        self._step, self._is_behind_call, self.ends_in_call = self._text, True, True

    def _is_half_call_or_text(self) -> bool:
        """Drop a partial call if a limit cut it off; otherwise, treat it as text."""
        if not self._is_cut or self._end in self._held:
            return self._is_text_up_to_end(final=True)
        self._held, self._step = "", self._text
        return False

    def _is_text_up_to_end(self, *, final: bool) -> bool:
        end = self._held.find(self._end)
        if end < 0:
            return final and self._is_text(len(self._held))
        return self._is_text(end + len(self._end))

    def _is_text(self, size: int) -> bool:
        """Treat the mark and the next ``size`` characters as text, not as a call."""
        text, self._blank = f"{self._blank}{self._mark}{self._held[:size]}", ""
        self._add_content(text)
        self._held, self._step = self._held[size:], self._text
        return True

    def _add_content(self, text: str) -> None:
        if text:
            self._pieces.append(("content", text))
            self._is_behind_call = False


class _Scanner:
    """Scans JSON to the end of its first object."""

    def __init__(self, end: str, depth: int = 0) -> None:
        """Begin.

        Args:
            end: the mark after a call; outside strings, this mark also ends the scan.
            depth: number of JSON objects already open at the start of the scan.
        """
        self._end, self._depth = end, depth
        self._signs = re.compile(rf'["{{}}\[\]]|{re.escape(end[0])}')
        self._is_string = False
        self._found: Literal["value", "mark"] | None = None
        self.at = 0
        """Number of characters of the text that were scanned so far."""

    def run(self, text: str) -> Literal["value", "mark"] | None:
        """Continue the scan in a longer text. Return 'value' or 'mark' if one ended the scan, else None."""
        if self._found is None:
            self._found = self._run(text)
        return self._found

    def _run(self, text: str) -> Literal["value", "mark"] | None:
        while self.at < len(text):
            sign = (_IN_STRING if self._is_string else self._signs).search(text, self.at)
            if sign is None:
                self.at = len(text)
            elif sign[0] == "\\":
                self.at = min(sign.start() + 2, len(text))
                if self.at < sign.start() + 2:
                    self.at = sign.start()
                    return None
            elif sign[0] == '"':
                self._is_string, self.at = not self._is_string, sign.end()
            elif sign[0] in "{[":
                self._depth, self.at = self._depth + 1, sign.end()
            elif sign[0] in "}]":
                self._depth, self.at = self._depth - 1, sign.end()
                if self._depth <= 0:
                    return "value"
            elif text.startswith(self._end, sign.start()):
                self.at = sign.start()
                return "mark"
            elif self._end.startswith(text[sign.start() :]):
                self.at = sign.start()
                return None
            else:
                self.at = sign.end()
        return None


def _num_uncertain(text: str, mark: str) -> int:
    """Return the length of the longest suffix of a text that is a prefix of a mark."""
    sizes = range(min(len(mark) - 1, len(text)), 0, -1)
    return next((size for size in sizes if mark.startswith(text[-size:])), 0)


def _decoded(text: str) -> Any:
    try:
        return _DECODER.decode(text)
    except (ValueError, RecursionError):
        return None


def _call(body: str) -> tuple[str, str] | None:
    """Return the name and the arguments of a call; None if the text is not a call."""
    call = _decoded(body)
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return None
    arguments = call.get("arguments")
    if isinstance(arguments, str) and isinstance(_decoded(arguments), dict):
        return call["name"], escape_half_pairs(arguments)  # JSON within JSON
    arguments = json.dumps({} if arguments is None else arguments, ensure_ascii=False)
    return call["name"], escape_half_pairs(arguments)
