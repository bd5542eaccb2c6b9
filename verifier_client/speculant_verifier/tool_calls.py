"""Calls of tools in what a model writes: found as they come, and demanded where a client wants one.

Families of models write them in styles of their own, which chat templates tell.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from speculant_graph.types import TokenId
from speculant_verifier.structured.grammar import HARMONY_THOUGHT, example_of

PieceKind = Literal["reasoning", "content", "name", "arguments"]
"""Reasoning, content, the name of a called tool, which begins a call, and more of its arguments, as JSON text."""

Piece = tuple[PieceKind, str]
"""A kind and text of it."""

Schema = Mapping[str, Any] | bool

STRICT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""How JSON is written whose spaces are given: as by Python's json."""

_BETWEEN_CALLS = "\n"


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
    return call["name"], json.dumps(call.get("arguments", {}), ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class CallStyle:
    """One way."""

    name: str
    """For people."""
    sign: str
    """What chat templates of models that write so contain."""
    call: str
    """A call: %NAME% stands for the tool's name in JSON, @arguments for the arguments."""
    mark: str = ""
    """What comes before a call."""
    end: str = ""
    """What comes after it."""
    answer: str = ""
    """What comes before an answer that is no call."""

    def examples(self, tools: Sequence[tuple[str, Schema]]) -> str:
        """Return what calls of some tools look like; see :meth:`form`."""
        return "\n".join(
            self.call.replace("%NAME%", json.dumps(name)[1:-1]).replace("@arguments", example_of(schema))
            for name, schema in tools
        )

    def form(self, tools: Sequence[tuple[str, Schema]], *, parallel: bool) -> str:
        """Return the form of an answer that calls one of some tools, or several if they may be parallel.

        Args:
            tools: names, and schemas of their arguments.
            parallel: whether there may be several calls.
        """
        calls, grammars = [], []
        for index, (name, schema) in enumerate(tools):
            call = self.call.replace("%NAME%", json.dumps(name)[1:-1])
            before, after = call.split("@arguments")
            calls.append(f"call_{index}: {_text(before)} @arguments_{index} {_text(after)}")
            grammars.append(_grammar(index, schema))
        one_of = " | ".join(f"call_{index}" for index in range(len(tools)))
        many = f" ({_text(_BETWEEN_CALLS)} call)*" if parallel else ""
        lines = [f"start: call{many}", f"call: {one_of}", *calls]
        return json.dumps({"grammars": [{"lark_grammar": "\n".join(lines)}, *grammars]})


@dataclass(frozen=True, slots=True)
class HarmonyStyle(CallStyle):
    """gpt-oss's way: a message to the tool. It calls one at a time."""

    def form(self, tools: Sequence[tuple[str, Schema]], *, parallel: bool) -> str:
        """Return the form of an answer that thinks, and then calls one of some tools."""
        del parallel
        lines = [
            "start: thought{0,4} (" + " | ".join(f"call_{index}" for index in range(len(tools))) + ")",
            HARMONY_THOUGHT,
        ]
        grammars = []
        for index, (name, schema) in enumerate(tools):
            header = _text(f"commentary to=functions.{name} ")
            lines.append(f'call_{index}: <|channel|> {header} <|constrain|> "json" <|message|> @arguments_{index}')
            grammars.append(_grammar(index, schema))
        return json.dumps({"grammars": [{"lark_grammar": "\n".join(lines)}, *grammars]})


STYLES: tuple[CallStyle, ...] = (
    HarmonyStyle(
        "harmony",
        "<|channel|>",
        call="<|channel|>commentary to=functions.%NAME% <|constrain|>json<|message|>@arguments<|call|>",
        answer="<|channel|>final<|message|>",
    ),
    CallStyle(
        "hermes",
        "<tool_call>",
        '<tool_call>\n{"name": "%NAME%", "arguments": @arguments}\n</tool_call>',
        "<tool_call>",
        "</tool_call>",
    ),
)
"""The first whose sign a chat template contains is taken."""


def style_of(template: str) -> CallStyle | None:
    """Return how a model with a chat template writes calls; None if that is not known."""
    if "tools" not in template:
        return None
    return next((style for style in STYLES if style.sign in template), None)


def _grammar(index: int, schema: Schema) -> dict[str, Any]:
    schema = {**schema, "x-guidance": STRICT} if isinstance(schema, Mapping) else schema
    return {"name": f"arguments_{index}", "json_schema": schema}


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
