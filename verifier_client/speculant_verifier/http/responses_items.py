"""Converts Responses requests to chat requests: items become messages, and namespaces become prefixes of tool names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from speculant_verifier.http.errors import missing, wrong
from speculant_verifier.http.responses_schemas import WANTS_LOGPROBS, Item, ResponsesRequest
from speculant_verifier.http.responses_store import ResponseStore, Seal
from speculant_verifier.http.schemas import ChatRequest, text_of
from speculant_verifier.http.tool_schemas import RUN_HERE, ChosenTool, FlatTool, flat_name

Fields = dict[str, Any]
"""A JSON object."""
_SAME_NAMES = (
    "model",
    "stream",
    "temperature",
    "top_p",
    "seed",
    "speculant",
    "parallel_tool_calls",
    "chat_template_kwargs",
)
_NAMES = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
}
"""Maps fields of a chat request to their names in the Responses API."""
_FLAT = re.compile(r"\.(function|custom|allowed_tools)\.(?=parameters|name|tools)")
"""Matches objects of a chat request whose fields are one level higher in the Responses API."""
_TOLD_FIRST = ("system", "developer")
_CALLS = ("function_call", "custom_tool_call")
_OUTPUTS = ("function_call_output", "custom_tool_call_output")


@dataclass(frozen=True, slots=True)
class ToolOrigin:
    """Name and namespace with which the client's request defines a tool."""

    name: str
    """Name of the tool in the client's request."""
    namespace: str | None = None
    """Namespace of the tool in the client's request; None if the tool has none."""


def tools_of(request: ResponsesRequest) -> tuple[list[Fields], dict[str, ToolOrigin]]:
    """Return a request's tools in the chat format, and the origin of each tool by the tool's name in that format."""
    tools: list[Fields] = []
    origins: dict[str, ToolOrigin] = {}
    for tool in request.tools or ():
        inner = [tool] if tool.type != "namespace" else tool.tools or ()
        namespace = tool.name if tool.type == "namespace" else None
        for each in inner:
            if each.type not in RUN_HERE or each.name is None:
                tools.append({"type": each.type if each.type not in RUN_HERE else "unknown"})
                continue
            name = flat_name(namespace, each.name)
            origins[name] = ToolOrigin(each.name, namespace)
            tools.append({"type": each.type, each.type: _described(each, name)})
    return tools, origins


def _described(tool: FlatTool, name: str) -> Fields:
    fields = tool.model_dump(include={"description", "parameters", "strict", "format"}, exclude_none=True)
    if tool.type == "custom":
        fields = {key: value for key, value in fields.items() if key in ("description", "format")}
    else:
        fields.pop("format", None)
    return {"name": name, **fields}


def resolved(
    items: Sequence[Item], store: ResponseStore, seal: Seal, tenant: str, before: Sequence[Item] = ()
) -> list[Item]:
    """Return a conversation's items, with references resolved and sealed reasoning opened.

    References to unknown items are left out. Outputs of other servers' tools are left out if their call is missing.
    Sealed reasoning from another server is not opened.

    Args:
        items: the request's items.
        store: contains the items of earlier responses.
        seal: opens sealed reasoning.
        tenant: the conversation's tenant.
        before: earlier items of the conversation.

    Raises:
        ApiError: the output of a function or custom tool has no matching call.
    """
    found = list(before)
    known = {item.id for item in before if item.id is not None}
    for item in items:
        kept = item
        if item.type == "item_reference":
            assert item.id is not None
            referred = store.item(tenant, item.id)
            if referred is None or referred.id in known:
                continue
            kept = referred
        if kept.type == "reasoning" and kept.encrypted_content is not None:
            reasoning = seal.opened(tenant, kept.encrypted_content)
            if reasoning is not None:
                kept = kept.model_copy(update={"content": reasoning})
        found.append(kept)
    called = {item.call_id for item in found if item.type in _CALLS}
    for index, item in enumerate(items):
        if item.type in _OUTPUTS and item.call_id not in called and item.name is None:
            message = f"no call has the call_id of this {item.type}"
            raise wrong(message, f"input.{index}.call_id", fix="send the call before it, or leave it out")
    return [item for item in found if item.type not in _OUTPUTS or item.call_id in called]


def require_something_said(given: Sequence[Item], instructions: str | None, items: Sequence[Item]) -> None:
    """Refuse items that leave the prompt empty, because the model would then answer the bare chat template.

    An input without items is allowed, because clients send it to warm up a server.

    Raises:
        ApiError: there are items, but neither they nor the instructions contain a text or a call.
    """
    if given and not instructions and not any(map(_says_something, items)):
        message = "{field} must have at least 1 item with a text or a call that is known here"
        raise wrong(message, "input", fix="give it")


def _says_something(item: Item) -> bool:
    if item.type in (*_CALLS, *_OUTPUTS):
        return True
    content = (item.content or item.summary) if item.type == "reasoning" else item.content
    return item.type in ("message", "reasoning") and bool(text_of(content))


def shortened(items: Sequence[Item], count: int) -> list[Item]:
    """Return a conversation without its first ``count`` items, and without the outputs of the dropped calls."""
    rest = items[count:]
    called = {item.call_id for item in rest if item.type in _CALLS}
    lost = {item.call_id for item in items[:count] if item.type in _CALLS} - called
    return [item for item in rest if item.type not in _OUTPUTS or item.call_id not in lost]


def as_chat(request: ResponsesRequest, items: Sequence[Item]) -> ChatRequest:
    """Convert a Responses request, with all items of its conversation, to a chat request."""
    fields: dict[str, Any] = {name: getattr(request, name) for name in _SAME_NAMES}
    fields |= {"messages": _messages(request.instructions, items), "max_tokens": request.max_output_tokens}
    fields["tools"] = tools_of(request)[0] or None
    choice = request.tool_choice
    fields["tool_choice"] = choice.model_dump(exclude_none=True) if isinstance(choice, ChosenTool) else choice
    if request.reasoning is not None:
        fields["reasoning_effort"] = request.reasoning.effort
    if request.top_logprobs is not None or WANTS_LOGPROBS in (request.include or ()):
        fields |= {"logprobs": True, "top_logprobs": request.top_logprobs}
    if request.text is not None and (form := request.text.format) is not None:
        fields["response_format"] = {"type": form.type}
        if form.type == "json_schema":
            if form.schema_ is None:
                raise missing("text.format.schema")
            fields["response_format"]["json_schema"] = {"schema": form.schema_, "strict": bool(form.strict)}
    return ChatRequest(**fields)


def own_name(field: str) -> str:
    """Return the Responses API's name for a field of a chat request."""
    return _FLAT.sub(".", _NAMES.get(field.partition(".")[0], field))


def _messages(instructions: str | None, items: Sequence[Item]) -> list[Fields]:
    """Return the chat messages for the items of a conversation.

    System and developer messages at the start become one message. Consecutive assistant items in the order reasoning,
    text, calls become one message.
    """
    messages: list[Fields] = [{"role": "system", "content": instructions}] if instructions else []
    for item in items:
        last = messages[-1] if messages else {}
        if item.type in _OUTPUTS:
            messages.append({"role": "tool", "tool_call_id": item.call_id, "content": text_of(item.output)})
        elif item.type == "message" and item.role != "assistant":
            # Templates accept at most one message before the first user message.
            if item.role in _TOLD_FIRST and len(messages) == 1 and last["role"] in _TOLD_FIRST:
                last["content"] += f"\n\n{text_of(item.content)}"
            else:
                content = text_of(item.content) if item.role != "user" else _parts(item)
                messages.append({"role": item.role, "content": content})
        elif item.type in ("message", "reasoning", *_CALLS):
            is_behind = item.type not in _CALLS and ("content" in last or "tool_calls" in last)
            if last.get("role") != "assistant" or is_behind:
                last = {"role": "assistant"}
                messages.append(last)
            _add(last, item)
    return [{"content": "", **message} for message in messages] or [{"role": "user", "content": ""}]


def _parts(item: Item) -> Any:
    """Return the content of a user message unchanged, because unsupported parts may have to be refused later."""
    content = item.content
    if content is None or isinstance(content, str):
        return content or ""
    return [part.model_dump(exclude_none=True) for part in content]


def _add(message: Fields, item: Item) -> None:
    """Add an assistant item to the chat message to which it belongs."""
    if item.type == "reasoning":
        reasoning = [message["reasoning_content"]] if "reasoning_content" in message else []
        message["reasoning_content"] = "\n".join([*reasoning, text_of(item.content or item.summary)])
    elif item.type in _CALLS:
        name = flat_name(item.namespace, item.name or "")
        call: Fields = {"id": item.call_id, "type": "function", "function": {"name": name, "arguments": item.arguments}}
        if item.type == "custom_tool_call":
            call = {"id": item.call_id, "type": "custom", "custom": {"name": name, "input": item.input}}
        message.setdefault("tool_calls", []).append(call)
    else:
        message["content"] = text_of(item.content)
