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

    ends_in_call: bool
    """Whether there were calls, and the last one is complete."""

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


HARMONY = HarmonyStyle(
    "harmony",
    "<|channel|>",
    call="<|channel|>commentary to=functions.%NAME% <|constrain|>json<|message|>@arguments<|call|>",
    answer="<|channel|>final<|message|>",
)
STYLES: tuple[CallStyle, ...] = (
    HARMONY,
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
