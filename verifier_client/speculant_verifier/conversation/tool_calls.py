"""Calls of tools in what a model writes: found as they come, and demanded where a client wants one.

Families of models write them in styles of their own, which chat templates tell.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from speculant_graph.types import TokenId
from speculant_verifier.structured.grammar import example_of

PieceKind = Literal["reasoning", "content", "name", "arguments"]
"""Reasoning, content, the name of a called tool, which begins a call, and more of its arguments, as JSON text."""

Piece = tuple[PieceKind, str]
"""A kind and text of it."""

Schema = Mapping[str, Any] | bool

STRICT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""How JSON is written whose spaces are given: as by Python's json."""


class Splitter(Protocol):
    """Splits one answer as it comes."""

    ends_in_call: bool
    """Whether there were calls, and the last one is complete."""

    def push(
        self, token_ids: Sequence[TokenId], text: str, *, final: bool = False, is_cut: bool = False
    ) -> list[Piece]:
        """Add what a step emitted; return what became certain.

        Args:
            token_ids: its tokens.
            text: the text that became certain by them.
            final: whether it is all.
            is_cut: whether a limit ended it: then half a call is no text.
        """


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
        """Return what calls of some tools look like.

        Args:
            tools: names, and schemas of their arguments.
        """
        return "\n".join(
            self.call.replace("%NAME%", json.dumps(name)[1:-1]).replace("@arguments", example_of(schema))
            for name, schema in tools
        )


HARMONY = CallStyle(
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
