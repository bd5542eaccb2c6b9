"""Calls that a model writes as JSON objects, between marks or as its whole answer."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from speculant_graph.types import TokenId
from speculant_verifier.tool_calls.pieces import Piece, joined

_ARGUMENTS = ("arguments", "parameters")


class JsonCalls:
    """Splits an answer into text and calls. How it is cut into pieces makes no difference.

    What only looks like the beginning of a call stays text.
    """

    def __init__(self, mark: str, end: str) -> None:
        """Begin.

        Args:
            mark: comes before a call, or before a list of calls; empty if the answer begins with the call itself.
            end: comes after a call; may be missing.
        """
        self._mark, self._end = mark, end
        self._held = ""  # text that may be the beginning of a mark
        self._call: _Call | None = None
        self._is_over = False  # no call may come any more
        self._has_calls = False

    def push(self, token_ids: Sequence[TokenId], text: str, *, final: bool = False) -> list[Piece]:
        """Add what a step emitted; return what became certain.

        Args:
            token_ids: not looked at.
            text: the text that became certain by them.
            final: whether it is all.
        """
        del token_ids
        pieces = [piece for character in text for piece in self._add(character)]
        if final:
            pieces += self._give_up() if self._call is not None else self._flush()
        return joined(pieces)

    def _add(self, character: str) -> Iterator[Piece]:
        if self._call is not None:
            yield from self._call.push(character)
            if self._call.is_wrong:
                yield from self._give_up()
            elif self._call.is_complete:
                self._call, self._has_calls = None, True
            return
        self._held += character
        if self._is_over:
            yield from self._flush()
        elif self._has_calls or not self._mark:
            yield from self._between(character)
        elif self._held == self._mark:
            self._call, self._held = _Call(), ""
        else:
            while self._held and not self._mark.startswith(self._held):
                yield "content", self._held[0]
                self._held = self._held[1:]

    def _between(self, character: str) -> Iterator[Piece]:
        """Take a character before the first call of an answer without marks, or behind a call."""
        if character == "{":
            self._call, self._held = _Call(), ""
            yield from self._call.push(character)
            return
        known = [each for each in (self._mark, self._end) if each]
        bare = self._held.strip(" \t\r\n,;[]")
        if not bare or any(bare in known or each.startswith(bare) for each in known):
            if bare and bare in known:
                self._held = ""
            return
        self._is_over = not self._has_calls or not self._mark
        if not self._is_over:
            self._has_calls = False  # text between calls; the next one comes behind a mark
        yield from self._flush()

    def _give_up(self) -> Iterator[Piece]:
        """Return what was no call as the text that it is."""
        assert self._call is not None
        if not self._call.has_name:
            yield "content", self._mark + self._call.text
        self._call, self._is_over = None, True

    def _flush(self) -> list[Piece]:
        held, self._held = self._held, ""
        return [("content", held)] if held and not (self._has_calls and not held.strip(" \t\r\n,;[]")) else []


class _Call:
    """One object, character by character."""

    def __init__(self) -> None:
        self.text = ""
        self.has_name = self.is_complete = self.is_wrong = self._has_arguments = False
        self._depth = 0
        self._is_in_string = self._is_escaped = False
        self._key: str | None = None  # of the value that is read; None before it is known
        self._part = ""
        self._arguments = ""  # that came before the name

    def push(self, character: str) -> Iterator[Piece]:
        self.text += character
        if not self._depth:
            if character == "{":
                self._depth = 1
            elif character not in " \t\r\n[":
                self.is_wrong = True
            return
        ends = not self._is_in_string and self._depth == 1 and character in (":}" if self._key is None else ",}")
        self._follow(character)
        if not ends:
            self._part += character
            if self._key in _ARGUMENTS:
                yield from self._argue(character if self._part.strip() else "")
            return
        part, self._part = self._part, ""
        try:
            if character == ":" and self._key is None:
                self._key = str(json.loads(part))
            else:
                if self._key == "name":
                    self.has_name = True
                    yield "name", str(json.loads(part))
                    yield from self._argue("")
                self._key = None
        except ValueError:
            self.is_wrong = True
        self.is_complete = character == "}" and not self.is_wrong
        if self.is_complete and not self.has_name:
            self.is_complete, self.is_wrong = False, True
        if self.is_complete and not self._has_arguments:
            yield "arguments", "{}"

    def _argue(self, text: str) -> Iterator[Piece]:
        self._arguments += text
        if self.has_name and self._arguments:
            yield "arguments", self._arguments
            self._arguments, self._has_arguments = "", True

    def _follow(self, character: str) -> None:
        if self._is_in_string:
            if self._is_escaped:
                self._is_escaped = False
            elif character == "\\":
                self._is_escaped = True
            elif character == '"':
                self._is_in_string = False
        elif character == '"':
            self._is_in_string = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1
