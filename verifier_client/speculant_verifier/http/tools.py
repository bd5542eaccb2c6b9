"""A request's tools: what the chat template gets, and the form of an answer that must call one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from speculant_graph.config import GenerationConfig
from speculant_verifier.http.errors import ApiError
from speculant_verifier.http.schemas import ChatMessage, ChatRequest, NamedTool
from speculant_verifier.structured.examples import example_of
from speculant_verifier.tool_calls import CallStyle

_ANYTHING = {"type": "object"}
"""Arguments of a function that names none."""


def check_messages(messages: Sequence[ChatMessage]) -> None:
    """Refuse messages that do not fit their roles.

    Raises:
        ApiError: which one, and which of its fields.
    """
    for index, message in enumerate(messages):
        problem = None
        if message.content is None and not message.tool_calls:
            problem = "content", "is missing"
        elif message.tool_calls and message.role != "assistant":
            problem = "tool_calls", "belongs to messages of the assistant; leave it out"
        elif message.role == "tool" and message.tool_call_id is None:
            problem = "tool_call_id", "is missing: name the call that the message answers"
        elif message.role != "tool" and message.tool_call_id is not None:
            problem = "tool_call_id", "belongs to messages of tools; leave it out"
        if problem is not None:
            param = f"messages.{index}.{problem[0]}"
            raise ApiError(400, f"{param} {problem[1]}", param=param)


def usable_tools(request: ChatRequest, style: CallStyle | None) -> list[dict[str, Any]]:
    """Return the tools that the chat template gets.

    Args:
        request: names them.
        style: how the model writes calls; None if it does not.

    Raises:
        ApiError: it does not, or the request contradicts itself.
    """
    tools, choice = request.tools or [], request.tool_choice
    names = [tool.function.name for tool in tools]
    if len(set(names)) < len(names):
        raise ApiError(400, "two tools have one name; give each its own", param="tools")
    if not tools and choice not in (None, "none", "auto"):
        raise ApiError(400, "tool_choice requires a call, but there are no tools; give some", param="tool_choice")
    if isinstance(choice, NamedTool) and choice.function.name not in names:
        raise ApiError(
            400, f"tool_choice names '{choice.function.name}', which is not among the tools", param="tool_choice"
        )
    for index, tool in enumerate(tools):
        if (tool.function.parameters or {}).get("type", "object") != "object":
            param = f"tools.{index}.function.parameters"
            raise ApiError(400, f"{param} is the schema of an object, which has the arguments; fix it", param=param)
    if tools and style is None and choice != "none":
        raise ApiError(
            400,
            "not supported here: 'tools', the model's chat template takes none, or calls of an unknown kind; "
            "leave them out",
            param="tools",
            code="unsupported_parameter",
        )
    if choice == "none":
        return []
    functions = [tool.function.model_dump(exclude_none=True) for tool in tools]
    return [{"type": "function", "function": {"description": "", **each}} for each in functions]  # templates want one


def demanded_form(request: ChatRequest, style: CallStyle | None) -> str:
    """Return the form of the answer if it must call a tool, else nothing.

    Raises:
        ApiError: it must be of another form, too.
    """
    choice = request.tool_choice
    if style is None or choice in (None, "none", "auto"):
        return ""
    has_other = request.response_format is not None and request.response_format.type != "text"
    if has_other or request.structured_outputs is not None:
        raise ApiError(400, "an answer that must call a tool takes no other form; leave one out", param="tool_choice")
    wanted = [choice.function.name] if isinstance(choice, NamedTool) else None
    pairs = [(name, schema) for name, schema in _functions(request) if wanted is None or name in wanted]
    return style.form(pairs, parallel=request.parallel_tool_calls)


def examples(request: ChatRequest, config: GenerationConfig, style: CallStyle | None) -> str:
    """Return text that the answer may resemble: calls of the tools, and JSON of the answer's schema."""
    parts = []
    if style is not None and request.tools and request.tool_choice != "none":
        parts.append(style.examples(_functions(request)))
    if config.json_schema:
        with suppress(ValueError):  # it is refused elsewhere
            parts.append(example_of(json.loads(config.json_schema)))
    return "\n".join(parts)


def _functions(request: ChatRequest) -> list[tuple[str, dict[str, Any]]]:
    functions = [tool.function for tool in request.tools or []]
    return [(each.name, _ANYTHING if each.parameters is None else each.parameters) for each in functions]
