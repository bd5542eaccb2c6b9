"""Splits answers in the harmony format into reasoning, content and tool calls.

A model that uses harmony writes an answer as several messages, each with a header:
``<|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...<|return|>``. Content is the
text of three kinds of messages: messages in channel ``final``, messages without a channel, and messages in
``commentary`` without a recipient. A message addressed to one of the request's tools is a tool call. The text of all
other messages is reasoning. Message headers and control tokens are left out of the pieces. The splitter adds only one
text: ``{}``, as the arguments of a call without arguments. If a model breaks the harmony format, its text is kept
unchanged as content.

Control tokens are recognised by id: text that only spells a control token stays text.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Literal

from speculant_graph.types import TokenId
from speculant_verifier.conversation.harmony_tokens import CALL, CHANNEL, END, MESSAGE, RETURN, START, HarmonyTokens
from speculant_verifier.conversation.text import Detokenizer
from speculant_verifier.conversation.tool_calls import Piece, PieceKind, joined

_FIRST_WORD = re.compile(r"\s*([^\s<]+)")
_SHOWN = ("final", "commentary")
_LONGEST_HEADER = 64
"""Maximum length of a message header, in tokens; longer text is not treated as a header."""

_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_PREFIX = "functions."

_Kind = Literal["control", "called"] | PieceKind
"""Kinds of the pieces that the splitter handles internally. 'called' marks the end of a tool call and has no text."""
_WITHOUT_TEXT = ("name", "called")
_JSON_SPACE = " \t\r\n"


class ChannelSplitter:
    """Splits one answer into pieces as it arrives. The result is the same however the answer is divided into steps."""

    def __init__(
        self,
        tokens: HarmonyTokens,
        decode: Callable[[Sequence[TokenId]], str],
        tool_names: Collection[str] | None = None,
    ) -> None:
        """Begin in a message header, because the prompt ends with the beginning of a header.

        Args:
            tokens: the control tokens.
            decode: converts token ids to text.
            tool_names: the available tools; if None, messages to tools are reasoning.
        """
        self._tool_names = tool_names
        self._names = tokens.names
        self._texts = Detokenizer(decode)
        self._header: list[str] | None = []  # None inside a message
        self._header_starts_well = True
        self._channel_at: int | None = None  # index in the header of the channel's name
        self._channel: _Kind = "content"
        self._is_raw = False
        self._is_harmony = False
        self._pieces: deque[tuple[_Kind, str]] = deque()
        self._num_due = 0
        self._has_arguments = False
        self.ends_in_call = False

    def push(
        self, token_ids: Sequence[TokenId], text: str, *, final: bool = False, is_cut: bool = False
    ) -> list[Piece]:
        """Add the output of a decoding step; return the pieces that can no longer change.

        Args:
            token_ids: the step's tokens.
            text: the text that became final in this step. This text may be shorter than the text of the step's tokens,
                because the rest may begin a stop text or follow one.
            final: whether the answer is complete.
            is_cut: unused, because headers are never text.
        """
        del is_cut
        for token in token_ids:
            self._add(token)
        if final:
            self._add_text(self._texts.push([], final=True))
            if self._header is not None:
                self._end_header("control" if self._is_harmony and self._header_starts_well else "content")
        self._num_due += len(text)
        taken: list[Piece] = []
        while self._pieces and (self._num_due or self._pieces[0][0] in _WITHOUT_TEXT):
            kind, piece = self._pieces.popleft()
            if kind == "name":
                taken.append((kind, piece))
                self._has_arguments = self.ends_in_call = False
                continue
            if kind == "called":
                self.ends_in_call = True
                if not self._has_arguments:
                    taken.append(("arguments", "{}"))
                continue
            if len(piece) > self._num_due:
                self._pieces.appendleft((kind, piece[self._num_due :]))
                piece = piece[: self._num_due]
            self._num_due -= len(piece)
            if kind != "control":
                taken.append((kind, piece))
                self._has_arguments |= kind == "arguments" and bool(piece.strip(_JSON_SPACE))
        return joined(taken)

    def _add(self, token: TokenId) -> None:
        piece = self._texts.push([token])
        name = self._names.get(token)
        if name is None:
            self._add_text(piece)
            return
        self._add_text(piece.removesuffix(name))  # an incomplete character
        if self._is_raw:
            self._pieces.append(("content", name))
        elif name == MESSAGE and self._header is not None:
            called = self._called()
            self._channel = "reasoning" if called is not None else self._kind()
            self._is_harmony = True
            self._end_header("control")
            self._pieces.append(("control", name))
            if called:
                self._channel = "arguments"
                self._pieces.append(("name", called))
        elif self._header is not None:
            self._header.append(name)
            if name == CHANNEL:
                self._channel_at = len(self._header)
            self._limit_header()
        elif name == START:
            self._begin_header([name])
        else:  # the end of a message, or a misplaced control token
            is_end = name in (END, RETURN, CALL)
            if is_end and self._channel == "arguments":
                self._pieces.append(("called", ""))
            self._pieces.append(("control", name))
            if is_end:
                self._begin_header([])

    def _called(self) -> str | None:
        """Return the tool that a header addresses: empty if the tool is unavailable, None if there is no recipient."""
        found = _RECIPIENT.search("".join(self._header or ()))
        if found is None:
            return None
        if self._tool_names is None:
            return ""
        name = found[1].removeprefix(_PREFIX)
        return name if found[1].startswith(_PREFIX) or name in self._tool_names else ""

    def _kind(self) -> PieceKind:
        """Return whether a message without a recipient is content or reasoning."""
        if self._channel_at is None:
            return "content"
        channel = _FIRST_WORD.match("".join((self._header or [])[self._channel_at :]))
        return "content" if channel is None or channel[1] in _SHOWN else "reasoning"

    def _add_text(self, text: str) -> None:
        if not text:
            return
        if self._header is None:
            self._pieces.append((self._channel, text))
            return
        if not self._header and self._is_harmony:
            self._header_starts_well = False  # only a header may follow the end of a message
        self._header.append(text)
        self._limit_header()

    def _limit_header(self) -> None:
        if self._header is not None and len(self._header) > _LONGEST_HEADER:
            self._channel, self._is_raw = "content", not self._is_harmony
            self._end_header("content")

    def _begin_header(self, pieces: list[str]) -> None:
        self._header, self._header_starts_well, self._channel_at = pieces, True, None

    def _end_header(self, kind: _Kind) -> None:
        if self._header:
            self._pieces.append((kind, "".join(self._header)))
        self._header = None
