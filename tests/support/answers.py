"""Random answers with tool calls, as models write them, and their parsed contents."""

from __future__ import annotations

import json
import random
from typing import Any

TOOL_NAMES = ("get_weather", "f", "mcp.read")
_TEXTS = [
    "Zwölf 🦊",
    " ",
    "\n",
    "See.",
    "日本語 ",
    "</tool",
    "<tool_call",
    "{",
    '"',
    "a b c ",
    "<|end|",
    "e\u0301",
    "👩‍👩‍👧",
]


def random_text(draw: random.Random, most: int = 5) -> str:
    """Return random text, with multi-byte characters and prefixes of markers."""
    return "".join(draw.choice(_TEXTS) for _ in range(draw.randint(1, most)))


def _arguments(draw: random.Random) -> str:
    values: list[Any] = [1, None, [1, {"a": "}"}], random_text(draw), {"x": random_text(draw)}, '</tool_call>"', "\\"]
    arguments = {random_text(draw, 2): draw.choice(values) for _ in range(draw.randint(0, 3))}
    return json.dumps(arguments, ensure_ascii=draw.random() < 0.3, indent=draw.choice([None, 1]))


def _of_harmony(draw: random.Random) -> str:
    messages = []
    for _ in range(draw.randint(0, 2)):
        channel = draw.choice(["analysis", "commentary"])
        messages.append(f"<|channel|>{channel}<|message|>{random_text(draw)}<|end|>")
    name = draw.choice(TOOL_NAMES)
    recipient = draw.choice([f"functions.{name}", name])
    body = draw.choice([_arguments(draw), _arguments(draw), "", '{"a": '])
    messages.append(draw.choice([
        f"<|channel|>commentary to={recipient} <|constrain|>json<|message|>{body}<|call|>",
        f" to={recipient}<|channel|>commentary json<|message|>{body}<|call|>",
        f"<|channel|>analysis to={recipient} code<|message|>{body}<|call|>",
        f"<|channel|>final<|message|>{random_text(draw)}<|return|>",
    ]))  # fmt: skip
    return "<|start|>assistant".join(messages)


def _of_hermes(draw: random.Random) -> str:
    parts = [random_text(draw)] if draw.random() < 0.5 else []
    for _ in range(draw.randint(1, 3)):
        name = json.dumps(draw.choice(TOOL_NAMES))
        body = draw.choice([
            f'{{"name": {name}, "arguments": {_arguments(draw)}}}',
            f'{{"name":{name},"arguments":{_arguments(draw)}}}',
            f'{{"arguments": {_arguments(draw)}, "name": {name}}}',
            f'{{"name": {name}}}',
            "nothing",
        ])  # fmt: skip
        space = draw.choice(["", "\n"])
        parts.append(f"<tool_call>{space}{body}{space}</tool_call>{space}")
    return "".join([*parts, *([random_text(draw)] if draw.random() < 0.3 else [])])


def random_answer(style: str, draw: random.Random) -> str:
    """Return an answer in the style 'harmony' or 'hermes'."""
    return _of_harmony(draw) if style == "harmony" else _of_hermes(draw)


def said(pieces: list[tuple[str, str]]) -> tuple[str, str, list[list[str]]]:
    """Return the reasoning, the content and the tool calls that the pieces form together."""
    texts = {"reasoning": "", "content": ""}
    calls: list[list[str]] = []
    for kind, text in pieces:
        if kind == "name":
            calls.append([text, ""])
        elif kind == "arguments":
            calls[-1][1] += text
        else:
            texts[kind] += text
    return texts["reasoning"], texts["content"], calls
