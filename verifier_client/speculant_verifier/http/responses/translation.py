"""From items to the messages of a chat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from speculant_verifier.http.errors import ApiError
from speculant_verifier.http.responses.schemas import (
    ChosenFunction,
    Content,
    Item,
    ResponsesRequest,
)
from speculant_verifier.http.schemas import ChatRequest

_SAME_NAMES = ("model", "stream", "temperature", "top_p", "seed", "speculant", "parallel_tool_calls")
_NAMES = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
}
"""What fields of a chat are called in a response."""
_TOLD_FIRST = ("system", "developer")


def as_chat(request: ResponsesRequest, items: Sequence[Item]) -> ChatRequest:
    """Return the chat that a request means.

    Args:
        request: its settings.
        items: all of the conversation.
    """
    fields: dict[str, Any] = {name: getattr(request, name) for name in _SAME_NAMES}
    fields["messages"] = _messages(request.instructions, items)
    fields["max_tokens"] = request.max_output_tokens
    if request.tools:
        fields["tools"] = [
            {"type": "function", "function": tool.model_dump(exclude={"type"}, exclude_none=True)}
            for tool in request.tools
        ]
    choice = request.tool_choice
    if isinstance(choice, ChosenFunction):
        fields["tool_choice"] = {"type": "function", "function": {"name": choice.name}}
    else:
        fields["tool_choice"] = choice
    if request.reasoning is not None:
        fields["reasoning_effort"] = request.reasoning.effort
    if request.text is not None and (form := request.text.format) is not None:
        fields["response_format"] = {"type": form.type}
        if form.type == "json_schema":
            if form.schema_ is None:
                raise ApiError(400, "text.format lacks schema; give it", param="text.format.schema")
            fields["response_format"]["json_schema"] = {"schema": form.schema_, "strict": bool(form.strict)}
    return ChatRequest(**fields)


def as_error(error: ApiError) -> ApiError:
    """Return the error of a chat with the names that a response's fields have."""
    detail = error.content["error"]
    message, param = str(detail["message"]).replace(".function.parameters", ".parameters"), detail["param"]
    for name, new in _NAMES.items():
        if name != "messages":
            message = message.replace(name, new)
        if param is not None and param.partition(".")[0] == name:
            message, param = message.replace(param, new), new
    if param is not None:
        param = param.replace(".function.parameters", ".parameters")
    return ApiError(error.status, message, kind=str(detail["type"]), param=param, code=detail["code"])


def _text_of(parts: Content | None) -> str:
    return parts if isinstance(parts, str) else "\n".join(part.text for part in parts or ())


@dataclass(slots=True)
class _Reply:
    """What the assistant did in one message."""

    reasoning: list[str] = field(default_factory=list)
    content: str | None = None
    calls: list[dict[str, Any]] = field(default_factory=list)

    def message(self) -> list[dict[str, Any]]:
        if not self.reasoning and self.content is None and not self.calls:
            return []
        message: dict[str, Any] = {"role": "assistant", "content": self.content or ""}
        if self.reasoning:
            message["reasoning_content"] = "\n".join(self.reasoning)
        if self.calls:
            message["tool_calls"] = self.calls
        return [message]


def _messages(instructions: str | None, items: Sequence[Item]) -> list[dict[str, Any]]:
    """Return the messages of a conversation; what stands before everything else becomes one message."""
    messages: list[dict[str, Any]] = []
    if instructions:
        messages.append({"role": "system", "content": instructions})
    reply = _Reply()
    for item in items:
        if item.type == "reasoning":
            if reply.calls or reply.content is not None:
                messages += reply.message()
                reply = _Reply()
            reply.reasoning.append(_text_of(item.content or item.summary))
        elif item.role == "assistant":
            if reply.calls or reply.content is not None:
                messages += reply.message()
                reply = _Reply()
            reply.content = _text_of(item.content)
        elif item.type == "function_call":
            function = {"name": item.name, "arguments": item.arguments}
            reply.calls.append({"id": item.call_id, "type": "function", "function": function})
        else:
            messages += reply.message()
            reply = _Reply()
            _add(messages, item)
    return messages + reply.message()


def _add(messages: list[dict[str, Any]], item: Item) -> None:
    if item.type == "function_call_output":
        messages.append({"role": "tool", "tool_call_id": item.call_id, "content": _text_of(item.output)})
        return
    text = _text_of(item.content)
    # Templates take one message before those of the user, if that.
    if item.role in _TOLD_FIRST and len(messages) == 1 and messages[0]["role"] in _TOLD_FIRST:
        messages[0]["content"] += f"\n\n{text}"
    else:
        messages.append({"role": item.role, "content": text})
