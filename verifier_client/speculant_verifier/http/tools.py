"""Converts a request's tools to descriptions for the prompt, and to a grammar for answers with tool calls."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from speculant_graph.config import GenerationConfig
from speculant_graph.errors import ApiError
from speculant_verifier.conversation.call_forms import ANY_TEXT, call_form
from speculant_verifier.conversation.tool_calls import STRICT, CallStyle
from speculant_verifier.http.errors import missing, unsupported, wrong
from speculant_verifier.http.schemas import ChatRequest
from speculant_verifier.http.tool_schemas import ChosenTool, Grammar, Tool, ToolCall
from speculant_verifier.structured.grammar import LOOSE, example_of, form_of, grammar_of_regex
from speculant_verifier.structured.json_schema import prepared

_ANYTHING = {"type": "object"}
"""JSON schema used for the arguments of a function that declares none."""
INPUT = "input"
"""Name of a custom tool's only argument, if the model writes calls in JSON."""
_TEXT = {
    "type": "object",
    "properties": {INPUT: {"type": "string"}},
    "required": [INPUT],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class UsableTool:
    """A tool as the prompt describes it to the model."""

    name: str
    """Name of the tool in the prompt."""
    description: str
    """Description of the tool, shown to the model."""
    parameters: Mapping[str, Any] | None
    """JSON schema of the tool's arguments; None if a function declares no schema, or if the input is plain text that
    matches ``grammar``."""
    is_custom: bool = False
    """Whether the tool is a custom tool, which takes text as its only argument or as the whole call."""
    grammar: Grammar | None = None
    """Grammar that a custom tool's text must match; None if any text is allowed."""
    is_strict: bool = False
    """Whether every keyword of the arguments' schema must be enforced."""

    @property
    def for_template(self) -> dict[str, Any]:
        """The tool in the format that the chat template expects."""
        function: dict[str, Any] = {"name": self.name, "description": self.description}
        if self.parameters is not None or self.is_custom:
            function["parameters"] = self.parameters or {"type": "string"}
        return {"type": "function", "function": function}


def usable_tools(request: ChatRequest, style: CallStyle | None) -> list[UsableTool]:
    """Return the tools for the prompt: the request's tools, if the client runs them and the model may call them.

    Args:
        request: the request.
        style: the model's call style; None if it is unknown.

    Raises:
        ApiError: the model can't call tools, or the request contradicts itself.
    """
    tools = [
        _usable(index, tool) for index, tool in enumerate(request.tools or ()) if tool.type in ("function", "custom")
    ]
    names = [tool.name for tool in tools]
    if len(set(names)) < len(names):
        raise wrong("two tools have one name", "tools", fix="give each its own")
    choice = request.tool_choice
    if isinstance(choice, ChosenTool):
        if nameless := choice.nameless("tool_choice"):
            raise missing(nameless)
        if (allowed := choice.allowed) is not None:
            wanted = {each.chosen_name for each in allowed.tools}
            tools = [tool for tool in tools if tool.name in wanted]
            names = [tool.name for tool in tools]
            choice = allowed.mode
        elif choice.chosen_name not in names:
            name = choice.chosen_name or choice.type
            raise wrong(f"{{field}} names '{name[:64]}', which is not among the tools", "tool_choice")
    if not tools and choice not in (None, "none", "auto"):
        message = "{field} requires a call, but there are no tools that can be called"
        raise wrong(message, "tool_choice", fix="give some")
    if choice == "none" or not tools:
        return []
    if style is None:
        reason = ", because the model's chat template takes none, or writes calls in an unknown form"
        raise unsupported("tools", "leave them out", reason=reason)
    if style.name != "harmony" and any(tool.grammar is not None for tool in tools):
        raise ApiError(
            "unsupported_parameter",
            "not supported here: a grammar of a custom tool, because this model writes its calls in JSON",
            fix="leave it out",
            field="tools",
        )
    return tools


def _usable(index: int, tool: Tool) -> UsableTool:
    if tool.custom is not None:
        own = tool.custom
        grammar = None if own.format is None else own.format.given
        description = own.description or ""
        if grammar is not None:
            told = f"Takes text, not JSON, of this {grammar.syntax} grammar:\n{grammar.definition}"
            return UsableTool(own.name, f"{description}\n{told}".strip(), None, is_custom=True, grammar=grammar)
        return UsableTool(own.name, description, _TEXT, is_custom=True)
    assert tool.function is not None
    function = tool.function
    if (function.parameters or {}).get("type", "object") != "object":
        param = f"tools.{index}.function.parameters"
        raise wrong("{field} must be the schema of an object, which has the arguments", param, fix="fix it")
    return UsableTool(function.name, function.description or "", function.parameters, is_strict=bool(function.strict))


def call_for_template(call: ToolCall, tools: Sequence[UsableTool]) -> dict[str, Any]:
    """Return a tool call of an earlier answer in the form that the chat template expects."""
    arguments: Any
    if call.custom is not None:
        if any(tool.name == call.custom.name and tool.parameters is None for tool in tools):
            return {"id": call.id, "type": "custom", "custom": {"name": call.custom.name, "input": call.custom.input}}
        name, arguments = call.custom.name, {INPUT: call.custom.input}
    else:
        assert call.function is not None
        name, arguments = call.function.name, call.function.arguments or "{}"
    return {"id": call.id, "type": "function", "function": {"name": name, "arguments": arguments}}


def must_call(request: ChatRequest) -> bool:
    """Tell whether the answer must call a tool."""
    choice = request.tool_choice
    if isinstance(choice, ChosenTool):
        return choice.allowed is None or choice.allowed.mode == "required"
    return choice == "required"


def with_form(
    config: GenerationConfig, request: ChatRequest, tools: Sequence[UsableTool], style: CallStyle | None
) -> GenerationConfig:
    """Return settings whose grammar forces a required call, or allows calls in addition to the answer's format.

    Args:
        config: settings of the request; their output format applies to an answer without a call.
        request: the request.
        tools: the tools that may be called.
        style: the model's call style.

    Raises:
        ApiError: a call is required, but the request also sets a format for the answer.
    """
    if style is None or not tools:
        return config
    form = form_of(config)
    if must_call(request):
        if form:
            message = "an answer that must call a tool can't have another form"
            raise wrong(message, "tool_choice", fix="leave one out")
        choice = request.tool_choice
        wanted = choice.chosen_name if isinstance(choice, ChosenTool) and choice.allowed is None else ""
        calls = [(tool.name, _form_of(tool, STRICT)) for tool in tools if not wanted or tool.name == wanted]
        grammar = call_form(style, calls, parallel=request.parallel_tool_calls)
        return config.model_copy(update={"grammar": grammar})
    final = json.loads(form) if form else ANY_TEXT
    if "grammars" in final:
        message = "tools can be combined with one grammar, not several"
        raise wrong(message, "structured_outputs", fix="give one, or leave the tools out")
    if form or any(tool.grammar is not None for tool in tools):
        calls = [(tool.name, _form_of(tool, LOOSE)) for tool in tools]
        grammar = call_form(style, calls, parallel=request.parallel_tool_calls, final=final)
        return config.model_copy(update={"json_schema": "", "grammar": grammar})
    return config


def _form_of(tool: UsableTool, spaces: Mapping[str, Any]) -> dict[str, Any]:
    """Return the grammar of a tool's input."""
    if tool.grammar is not None:
        is_lark = tool.grammar.syntax == "lark"
        return {"lark_grammar": tool.grammar.definition if is_lark else grammar_of_regex(tool.grammar.definition)}
    schema = prepared(tool.parameters or _ANYTHING, is_strict=tool.is_strict)
    options = {**spaces} if tool.is_strict else {**spaces, "lenient": True}
    return {"json_schema": {**schema, "x-guidance": options} if isinstance(schema, dict) else schema}


def examples(tools: Sequence[UsableTool], config: GenerationConfig, style: CallStyle | None) -> str:
    """Return text that the answer may resemble: example tool calls, and example JSON of the answer's schema."""
    parts = []
    if style is not None and tools:
        parts.append(style.examples([(tool.name, tool.parameters or _ANYTHING) for tool in tools]))
    if config.json_schema:
        with suppress(ValueError, RecursionError):  # reported elsewhere
            parts.append(example_of(json.loads(config.json_schema)))
    return "\n".join(parts)
