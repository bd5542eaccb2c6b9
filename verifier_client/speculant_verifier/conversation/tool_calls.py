"""Styles in which models write tool calls, and the interface for parsing the calls as they arrive.

Each model family has a call style, which is recognised from the model's chat template.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from speculant_graph.types import TokenId
from speculant_verifier.structured.grammar import example_of

PieceKind = Literal["reasoning", "content", "name", "arguments"]
"""Kinds of the pieces of an answer: reasoning, content, name and arguments. A tool's name begins a call, and the call's
arguments follow as JSON text."""

Piece = tuple[PieceKind, str]
"""A piece of an answer: its kind and its text."""

Schema = Mapping[str, Any] | bool

STRICT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""llguidance options for JSON with fixed spaces, as Python's json module writes it."""


class Splitter(Protocol):
    """Splits one answer into pieces as it arrives."""

    ends_in_call: bool
    """Whether the answer has tool calls and the last call is complete."""

    def push(
        self, token_ids: Sequence[TokenId], text: str, *, final: bool = False, is_cut: bool = False
    ) -> list[Piece]:
        """Add the output of a decoding step; return the pieces that can no longer change.

        Args:
            token_ids: the step's tokens.
            text: the text that became final in this step.
            final: whether the answer is complete.
            is_cut: whether a limit ended the answer; if so, a partial call is not treated as text.
        """


def joined(pieces: Sequence[Piece]) -> list[Piece]:
    """Join adjacent pieces of the same kind; never join tool names."""
    joined: list[Piece] = []
    for kind, text in pieces:
        if joined and joined[-1][0] == kind != "name":
            joined[-1] = kind, joined[-1][1] + text
        else:
            joined.append((kind, text))
    return joined


@dataclass(frozen=True, slots=True)
class CallStyle:
    """Style in which the models of one family write tool calls."""

    name: str
    """Name of the call style, such as 'hermes'."""
    sign: str
    """Text that occurs in the chat templates of all models with this style."""
    call: str
    """Template of a call: %NAME% stands for the tool's name in JSON, @arguments for the arguments."""
    mark: str = ""
    """Text that the model writes before a tool call."""
    end: str = ""
    """Text that the model writes after a tool call."""
    answer: str = ""
    """Text that the model writes before an answer without a tool call."""

    def examples(self, tools: Sequence[tuple[str, Schema]]) -> str:
        """Return the text of one example call of each tool.

        Args:
            tools: names of tools, and schemas of their arguments.
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
"""All call styles; a model has the first style whose sign occurs in its chat template."""


def style_of(template: str) -> CallStyle | None:
    """Return the call style of a model with this chat template; None if unknown."""
    if "tools" not in template:
        return None
    return next((style for style in STYLES if style.sign in template), None)
