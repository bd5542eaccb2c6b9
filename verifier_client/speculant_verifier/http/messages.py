"""Maps requests of Anthropic's Messages API to chat requests."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from loguru import logger
from pydantic import TypeAdapter, ValidationError

from speculant_graph.errors import ApiError
from speculant_graph.serving.access import Principal
from speculant_verifier.http.builders import RequestContext
from speculant_verifier.http.errors import error_of, missing, of_validation, wrong
from speculant_verifier.http.mapping import RequestMapping
from speculant_verifier.http.messages_schemas import AnthropicTool, Block, Blocks, MessagesRequest, TokenCountRequest
from speculant_verifier.http.schemas import ChatRequest
from speculant_verifier.http.token_texts import Fields

_EFFORTS = {"xhigh": "high", "max": "high"}
_BILLING = "x-anthropic-billing-header:"
"""Start of a text block that Claude Code sends for Anthropic's own use; the block's text differs in every request."""
_NAMES = {
    "parameters": "input_schema",
    "response_format": "output_config.format",
    "reasoning_effort": "output_config.effort",
}
"""Maps fields of a chat request to their names in the Messages API."""
_BLOCKS: TypeAdapter[list[Block]] = TypeAdapter(Blocks)


async def map_messages(
    mapping: RequestMapping, request: TokenCountRequest, principal: Principal, *, takes_effort: bool
) -> RequestContext:
    """Convert a Messages request to a chat request, and prepare it for the decoder.

    Args:
        mapping: prepares chat requests.
        request: the request.
        principal: the client.
        takes_effort: whether the chat template accepts a reasoning effort.

    Raises:
        ApiError: a field is wrong or not allowed.
    """
    with _own_names():
        return await mapping.chat(as_chat(request, takes_effort=takes_effort), principal)


async def count_tokens(mapping: RequestMapping, request: TokenCountRequest, *, takes_effort: bool) -> int:
    """Return the number of prompt tokens of a conversation; :func:`map_messages` describes the arguments.

    Raises:
        ApiError: a field is wrong.
    """
    with _own_names():
        return await mapping.count(as_chat(request, takes_effort=takes_effort))


@contextmanager
def _own_names() -> Iterator[None]:
    """In errors, replace the field names of chat requests by the names of the Messages API."""
    try:
        yield
    except Exception as error:
        found = error_of(error)
        raise found.renamed(_own_name(found.field)) from error


def _own_name(field: str) -> str:
    """Return the Messages API's name for a field of a chat request."""
    return ".".join(_NAMES.get(part, part) for part in field.split(".") if part != "function")


def as_chat(request: TokenCountRequest, *, takes_effort: bool) -> ChatRequest:
    """Convert a request of the Messages API to a chat request.

    Args:
        request: the request.
        takes_effort: whether the chat template accepts a reasoning effort.

    Raises:
        ApiError: a field is wrong.
    """
    fields: Fields = {"model": request.model, "messages": _messages(request)}
    fields |= _tool_fields(request)
    options = request.output_config
    if takes_effort and (effort := _effort(request)) is not None:
        fields["reasoning_effort"] = effort
    if options is not None and options.format is not None:
        form = {"schema": options.format.schema_, "strict": True}
        fields["response_format"] = {"type": "json_schema", "json_schema": form}
    if isinstance(request, MessagesRequest):
        fields["stream"] = bool(request.stream)
        for name in ("max_tokens", "temperature", "top_p", "top_k", "speculant"):
            fields[name] = getattr(request, name)
        fields["stop"] = _stops(request.stop_sequences)
    try:
        return ChatRequest(**fields)
    except ValidationError as error:
        raise _within(error) from error


def _within(error: ValidationError, *path: str) -> ApiError:
    """Return the client's error for an invalid value at a path of the request body."""
    return of_validation([{**each, "loc": ("body", *path, *each["loc"])} for each in error.errors()])


def shows_reasoning(request: TokenCountRequest) -> bool:
    """Tell whether an answer has thinking blocks; only clients that ask for thinking blocks expect them."""
    return request.thinking is not None and request.thinking.type != "disabled"


def _stops(stops: Sequence[str] | None) -> list[str] | None:
    if stops is not None and not all(0 < len(stop) <= 1024 for stop in stops):
        raise wrong("{field}: give texts of 1 to 1024 characters", "stop_sequences")
    return list(stops) if stops else None


def _effort(request: TokenCountRequest) -> str | None:
    options, thinking = request.output_config, request.thinking
    if options is not None and options.effort is not None:
        return _EFFORTS.get(options.effort, options.effort)
    return "low" if thinking is not None and thinking.type == "disabled" else None


def _messages(request: TokenCountRequest) -> list[Fields]:
    messages: list[Fields] = []
    told = [_told_of(block) for block in request.system or () if not (block.text or "").startswith(_BILLING)]
    if any(told):
        messages.append({"role": "system", "content": "\n".join(filter(None, told))})
    last = len(request.messages) - 1
    if request.messages[last].role == "assistant":
        what = "not supported here: a prefilled answer"
        raise wrong(what, "messages", fix="let the last message be the user's")
    for index, message in enumerate(request.messages):
        if message.role == "assistant":
            messages.append(_of_assistant(message.content, f"messages.{index}.content"))
        else:
            is_latest = index == last and not any(block.type == "tool_result" for block in message.content)
            messages += _of_user(message.role, message.content, f"messages.{index}.content", is_latest=is_latest)
    return messages


def _of_assistant(blocks: Sequence[Block], param: str) -> Fields:
    _require_none(blocks, "tool_result", "the user", param)
    reasoning = [block.thinking for block in blocks if block.type == "thinking" and block.thinking]
    texts = [text for block in blocks if block.type not in ("thinking", "tool_use") and (text := _text_of(block))]
    calls = [
        {
            "id": block.id,
            "type": "function",
            "function": {"name": block.name, "arguments": _as_json(block.input)},
        }
        for block in blocks
        if block.type == "tool_use"
    ]
    message: Fields = {"role": "assistant", "content": "\n".join(texts)}
    if reasoning:
        message["reasoning_content"] = "\n".join(reasoning)
    if calls:
        message["tool_calls"] = calls
    return message


def _of_user(role: str, blocks: Sequence[Block], param: str, *, is_latest: bool) -> Iterator[Fields]:
    """Yield the chat messages for one user message; each tool result becomes a separate message."""
    _require_none(blocks, "tool_use", "the assistant", param)
    texts: list[str] = []
    for number, block in enumerate(blocks):
        if block.type == "tool_result":
            if texts:
                yield {"role": role, "content": "\n".join(texts)}
                texts = []
            yield {
                "role": "tool",
                "tool_call_id": block.tool_use_id,
                "content": _result_of(block, f"{param}.{number}.content"),
            }
            continue
        if is_latest and _text_of(block) is None:
            raise ApiError(
                "unsupported_parameter",
                f"not supported here: blocks of type '{block.type}'",
                fix="leave it out, or describe it in text",
                field=f"{param}.{number}",
            )
        texts.append(_told_of(block))
    if texts or not blocks:
        yield {"role": role, "content": "\n".join(texts)}


def _as_json(value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except (ValueError, RecursionError) as error:
        raise wrong("an input is nested too deeply", "messages", fix="make it flatter") from error


def _require_none(blocks: Sequence[Block], kind: str, author: str, param: str) -> None:
    for number, block in enumerate(blocks):
        if block.type == kind:
            message = f"{{field}}: a block of type '{kind}' belongs in messages of {author}"
            raise wrong(message, f"{param}.{number}", fix="move it")


def _result_of(result: Block, param: str) -> str:
    """Return a tool's result as text."""
    if result.content is None:
        return "error" if result.is_error else ""
    try:
        blocks = _BLOCKS.validate_python(result.content)
    except ValidationError as error:
        raise _within(error, *param.split(".")) from error
    return "\n".join(map(_told_of, blocks))


def _told_of(block: Block) -> str:
    """Return the text of a block, or a placeholder if the block has no text."""
    text = _text_of(block)
    return f"[{block.type}]" if text is None else text


def _text_of(block: Block) -> str | None:
    """Return the text of a block; None for a block without text, such as an image."""
    if block.text is not None:
        return block.text
    source = block.source if isinstance(block.source, dict) else {}
    parts = [block.title]
    if source.get("type") in ("text", "content"):
        parts.append(_plain(source.get("data", source.get("content"))))
    elif block.type == "search_result":
        parts.append(_plain(block.content))
    told = [part for part in parts if part]
    return "\n".join(told) if told and len(parts) > 1 else None


def _plain(content: object) -> str | None:
    """Return content as plain text: a text unchanged, or the joined texts of blocks; None for other values."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return None
    texts = [each.get("text") for each in content if isinstance(each, dict)]
    return "\n".join(text for text in texts if isinstance(text, str))


def _tool_fields(request: TokenCountRequest) -> Fields:
    tools = [_function(index, tool) for index, tool in enumerate(request.tools or ()) if _is_served(tool)]
    choice = request.tool_choice
    fields: Fields = {"tools": tools} if tools else {}
    if choice is None:
        return fields
    fields["parallel_tool_calls"] = not choice.disable_parallel_tool_use
    if choice.type == "tool":
        fields["tool_choice"] = {"type": "function", "function": {"name": choice.name}}
    elif choice.type != "auto" or tools:
        fields["tool_choice"] = {"any": "required"}.get(choice.type, choice.type)
    return fields


def _is_served(tool: AnthropicTool) -> bool:
    if tool.type in (None, "custom") or tool.input_schema is not None:
        return True
    logger.debug("a tool that the server can't run is left out: {}", str(tool.type)[:64])
    return False


def _function(index: int, tool: AnthropicTool) -> Fields:
    if tool.name is None:
        raise missing(f"tools.{index}.name")
    function: Fields = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
    return {"type": "function", "function": {name: value for name, value in function.items() if value is not None}}
