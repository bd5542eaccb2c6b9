"""Answers of models that write in harmony channels: reasoning, and content.

Such a model writes messages of its own, each with a header:
``<|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...<|return|>``. The text of
channel ``final``, or of a message without one, is the answer's content; a message to one of the request's functions is
a call; the text of all other channels is its reasoning; headers and control tokens are none of these. Nothing is added,
and nothing is lost where a model does not keep to the form: then what it wrote is content as it stands.

Control tokens are known by their ids: text that only spells one is text.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Sequence
from typing import Literal

from speculant_graph.types import TokenId
from speculant_verifier.conversation.harmony_tokens import HarmonyTokens
from speculant_verifier.conversation.tool_calls import Piece, PieceKind, joined
from speculant_verifier.text import Detokenizer

_FIRST_WORD = re.compile(r"\s*([^\s<]+)")
_LONGEST_HEADER = 64
"""In tokens; what goes on for longer without a message is none."""

_RECIPIENT = re.compile(r"\bto=functions\.([a-zA-Z0-9_.-]+)")

_Kind = Literal["control"] | PieceKind


class ChannelSplitter:
    """Splits one answer as it comes. How it is cut into pieces makes no difference."""

    def __init__(
        self, tokens: HarmonyTokens, decode: Callable[[Sequence[TokenId]], str], *, finds_calls: bool = False
    ) -> None:
        """Start behind the prompt, which ends with the beginning of a header.

        Args:
            tokens: the control tokens.
            decode: turns token ids into text.
            finds_calls: whether messages to functions are calls, and not reasoning.
        """
        self._finds_calls = finds_calls
        self._names = tokens.names
        self._texts = Detokenizer(decode)
        self._header: list[str] | None = []  # None: within a message
        self._header_starts_well = True
        self._channel_at: int | None = None  # where in the header the channel's name begins
        self._channel: _Kind = "content"
        self._is_raw = False
        self._is_harmony = False
        self._pieces: deque[tuple[_Kind, str]] = deque()
        self._num_due = 0

    def push(self, token_ids: Sequence[TokenId], text: str, *, final: bool = False) -> list[Piece]:
        """Add what a step emitted; return what became certain.

        Args:
            token_ids: its tokens.
            text: the text that became certain by them. Less than the tokens spell: the rest may begin a stop text,
                or come after one.
            final: whether it is all.
        """
        for token in token_ids:
            self._add(token)
        if final:
            self._add_text(self._texts.push([], final=True))
            if self._header is not None:
                self._end_header("control" if self._is_harmony and self._header_starts_well else "content")
        self._num_due += len(text)
        taken: list[Piece] = []
        while self._pieces and (self._num_due or self._pieces[0][0] == "name"):
            kind, piece = self._pieces.popleft()
            if kind == "name":
                taken.append((kind, piece))
                continue
            if len(piece) > self._num_due:
                self._pieces.appendleft((kind, piece[self._num_due :]))
                piece = piece[: self._num_due]
            self._num_due -= len(piece)
            if kind != "control":
                taken.append((kind, piece))
        return joined(taken)

    def _add(self, token: TokenId) -> None:
        piece = self._texts.push([token])
        name = self._names.get(token)
        if name is None:
            self._add_text(piece)
            return
        self._add_text(piece.removesuffix(name))  # a character that never became complete
        if self._is_raw:
            self._pieces.append(("content", name))
        elif name == "<|message|>" and self._header is not None:
            header = "" if self._channel_at is None else "".join(self._header[self._channel_at :])
            channel = _FIRST_WORD.match(header)
            called = _RECIPIENT.search("".join(self._header)) if self._finds_calls else None
            self._channel = "content" if channel is None or channel[1] == "final" else "reasoning"
            self._is_harmony = True
            self._end_header("control")
            self._pieces.append(("control", name))
            if called is not None:
                self._channel = "arguments"
                self._pieces.append(("name", called[1]))
        elif self._header is not None:
            self._header.append(name)
            if name == "<|channel|>":
                self._channel_at = len(self._header)
            self._limit_header()
        elif name == "<|start|>":
            self._begin_header([name])
        else:  # the end of a message, or a control token that has no business there
            self._pieces.append(("control", name))
            if name in ("<|end|>", "<|return|>", "<|call|>"):
                self._begin_header([])

    def _add_text(self, text: str) -> None:
        if not text:
            return
        if self._header is None:
            self._pieces.append((self._channel, text))
            return
        if not self._header and self._is_harmony:
            self._header_starts_well = False  # behind the end of a message only another header may come
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
