"""Grammars for answers that must call a tool, or that either call a tool or match another grammar."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from speculant_verifier.conversation.tool_calls import CallStyle
from speculant_verifier.structured.grammar import HARMONY_THOUGHT

Form = Mapping[str, Any]
"""A grammar in llguidance's JSON format: ``{"json_schema": ...}`` or ``{"lark_grammar": ...}``."""
ANY_TEXT: Form = {"lark_grammar": r"start: /(.|\n)*/"}
"""Grammar that every text matches."""
_BETWEEN_CALLS = "\n"


def call_form(
    style: CallStyle, calls: Sequence[tuple[str, Form]], *, parallel: bool = False, final: Form | None = None
) -> str:
    """Return the grammars of an answer that calls a tool, in llguidance's JSON format.

    Args:
        style: the model's call style.
        calls: names of tools, and the forms of their arguments.
        parallel: whether several calls are allowed; harmony allows one at a time.
        final: the form of an answer without a call; None if a call is required.
    """
    lines = _of_harmony(calls, final is not None) if style.name == "harmony" else _of_json(style, calls, parallel)
    if final is None:
        lines.insert(0, "start: calls")
    else:
        header = '<|channel|> "final" (" "? <|constrain|> "json")? <|message|> ' if style.name == "harmony" else ""
        reasoning = "thought{0,4} " if style.name == "harmony" else ""
        lines = ["start: calls | final", f"final: {reasoning}{header}@final", *lines]
    grammars = [{"name": f"arguments_{index}", **form} for index, (_, form) in enumerate(calls)]
    grammars += [] if final is None else [{"name": "final", **final}]
    return json.dumps({"grammars": [{"lark_grammar": "\n".join(lines)}, *grammars]})


def _of_harmony(calls: Sequence[tuple[str, Form]], is_free: bool) -> list[str]:
    """Return harmony's grammar rules for the reasoning and for the tool call that follows it.

    If a call is required, its header has a single spelling, so that the header's tokens can be forced. If a call is
    optional, the grammar allows every header spelling that models use.
    """
    lines = [f"calls: thought{{0,4}} ({_one_of(calls)})", HARMONY_THOUGHT]
    for index, (name, form) in enumerate(calls):
        recipient = f"to=functions.{name}"
        takes_text = "json_schema" not in form
        if not is_free:
            kind = "" if takes_text else '" " <|constrain|> "json" '
            header = f"<|channel|> {_text(f'commentary {recipient}')} {kind}"
        else:
            behind = f'{_text(f" {recipient}")} <|channel|> ("commentary" | "analysis")'
            before = f'<|channel|> ("commentary" | "analysis") {_text(f" {recipient}")}'
            header = f'({behind} | {before}) (" "? <|constrain|>? ("json" | "code"))? '
        lines.append(f"call_{index}: {header}<|message|> @arguments_{index}")
    return lines


def _of_json(style: CallStyle, calls: Sequence[tuple[str, Form]], parallel: bool) -> list[str]:
    lines = [f"calls: call ({_text(_BETWEEN_CALLS)} call)*" if parallel else "calls: call", f"call: {_one_of(calls)}"]
    for index, (name, _) in enumerate(calls):
        before, after = style.call.replace("%NAME%", json.dumps(name)[1:-1]).split("@arguments")
        lines.append(f"call_{index}: {_text(before)} @arguments_{index} {_text(after)}")
    return lines


def _one_of(calls: Sequence[tuple[str, Form]]) -> str:
    return " | ".join(f"call_{index}" for index in range(len(calls)))


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
