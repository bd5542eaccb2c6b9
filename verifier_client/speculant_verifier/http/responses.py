"""OpenAI's Responses API: its requests become chats, and chats' answers become its items and events."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from speculant_graph.serving.access import Principal
from speculant_verifier.conversation.tool_calls import Piece
from speculant_verifier.http.builders import (
    AnswerBuilder,
    Fields,
    RequestContext,
    ServedModel,
    speculation_of,
    to_json,
)
from speculant_verifier.http.errors import ApiError, error_of
from speculant_verifier.http.mapping import RequestMapping
from speculant_verifier.http.responses_schemas import ChosenFunction, Content, Item, ResponsesRequest
from speculant_verifier.http.schemas import ChatRequest
from speculant_verifier.results import GenerationResult, StepEvent

_Event = tuple[str, Fields]
"""Its type, without "response.", and its fields."""
_KINDS = {"content": "message", "reasoning": "reasoning", "arguments": "function_call"}
_PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc"}
_PARTS: dict[str, Fields] = {
    "message": {"type": "output_text", "annotations": [], "logprobs": []},
    "reasoning": {"type": "reasoning_text"},
}
_SAME_NAMES = (
    "model",
    "stream",
    "temperature",
    "top_p",
    "seed",
    "speculant",
    "parallel_tool_calls",
)
_NAMES = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
}
"""What fields of a chat are called in a response."""
_TOLD_FIRST = ("system", "developer")

_MAX_CHARACTERS = 64_000_000
"""Of all items that are kept, as JSON."""

Keep = Callable[[str, Sequence[Fields]], None]
"""Takes the id of a response that has ended, and its output."""


class ResponseStore:
    """Conversations in memory, the latest ones, each for its tenant only. Belongs to the event loop."""

    def __init__(self, max_characters: int = _MAX_CHARACTERS) -> None:
        """Begin empty.

        Args:
            max_characters: bound of what is kept; the oldest go.
        """
        self._capacity = max_characters
        self._kept: OrderedDict[tuple[str, str], tuple[tuple[Item, ...], int]] = OrderedDict()

    def put(self, tenant: str, response_id: str, items: Sequence[Item]) -> None:
        """Keep a response that has ended: all items of its conversation, its own output included."""
        size = sum(len(item.model_dump_json(exclude_unset=True)) for item in items)
        self._kept[tenant, response_id] = tuple(items), size
        self._capacity -= size
        while self._capacity < 0:
            _, (_, oldest) = self._kept.popitem(last=False)
            self._capacity += oldest

    def conversation(self, tenant: str, response_id: str) -> tuple[Item, ...]:
        """Return the items of a response's conversation.

        Raises:
            ApiError: there is none, or no longer.
        """
        if (kept := self._kept.get((tenant, response_id))) is None:
            raise ApiError(
                400,
                "previous_response_id is not known, or no longer: responses are kept in memory, unless store is "
                "false; send the whole conversation as input",
                param="previous_response_id",
                code="previous_response_not_found",
            )
        return kept[0]


async def map_responses(
    mapping: RequestMapping, request: ResponsesRequest, principal: Principal, store: ResponseStore
) -> tuple[RequestContext, Keep]:
    """Prepare a conversation, as the chat that it is.

    Returns:
        What is decoded, and what keeps the response for later ones.

    Raises:
        ApiError: which field is wrong, or what it may not.
    """
    items = request.input
    try:
        session = mapping.session(request.speculant, principal)
        tenant = "" if session is None else session.tenant or ""
        if request.previous_response_id is not None:
            items = [*store.conversation(tenant, request.previous_response_id), *items]
        context = await mapping.chat(as_chat(request, items), principal)
    except Exception as error:
        raise as_error(error_of(error)) from error

    def keep(response_id: str, output: Sequence[Fields]) -> None:
        if request.store:
            store.put(tenant, response_id, [*items, *(Item(**item) for item in output)])

    return context, keep


def as_chat(request: ResponsesRequest, items: Sequence[Item]) -> ChatRequest:
    """Return the chat that a request means, whose conversation so far is given."""
    fields: dict[str, Any] = {name: getattr(request, name) for name in _SAME_NAMES}
    fields |= {"messages": _messages(request.instructions, items), "max_tokens": request.max_output_tokens}
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


def _messages(instructions: str | None, items: Sequence[Item]) -> list[Fields]:
    """Return the messages of a conversation; what stands before everything else becomes one message.

    What the assistant did in a row is one message: thoughts, then a text, then calls.
    """
    messages: list[Fields] = [{"role": "system", "content": instructions}] if instructions else []
    for item in items:
        last = messages[-1] if messages else {}
        if item.type == "function_call_output":
            messages.append({"role": "tool", "tool_call_id": item.call_id, "content": _text_of(item.output)})
        elif item.type == "message" and item.role != "assistant":
            text = _text_of(item.content)
            # Templates take one message before those of the user, if that.
            if item.role in _TOLD_FIRST and len(messages) == 1 and last["role"] in _TOLD_FIRST:
                last["content"] += f"\n\n{text}"
            else:
                messages.append({"role": item.role, "content": text})
        else:
            is_behind = item.type != "function_call" and ("content" in last or "tool_calls" in last)
            if last.get("role") != "assistant" or is_behind:
                last = {"role": "assistant"}
                messages.append(last)
            _add(last, item)
    return [{"content": "", **message} for message in messages]


def _add(message: Fields, item: Item) -> None:
    """Add what the assistant did to its message."""
    if item.type == "reasoning":
        thoughts = [message["reasoning_content"]] if "reasoning_content" in message else []
        message["reasoning_content"] = "\n".join([*thoughts, _text_of(item.content or item.summary)])
    elif item.type == "function_call":
        function = {"name": item.name, "arguments": item.arguments}
        call = {"id": item.call_id, "type": "function", "function": function}
        message.setdefault("tool_calls", []).append(call)
    else:
        message["content"] = _text_of(item.content)


class _Output:
    """The items of an answer in the making; every step of theirs is an event."""

    def __init__(self) -> None:
        self.items: list[Fields] = []  # those that have ended
        self._item: Fields | None = None
        self._text = ""

    @property
    def is_empty(self) -> bool:
        """Whether nothing came yet."""
        return not self.items and self._item is None

    def add(self, pieces: Sequence[Piece]) -> Iterator[_Event]:
        """Take what came; yield events."""
        for kind, text in pieces:
            if kind == "name":
                yield from self.end("completed")
                call_id = f"call_{secrets.token_hex(12)}"
                yield from self._begin("function_call", {"call_id": call_id, "name": text, "arguments": ""})
                continue
            wanted = _KINDS[kind]
            if self._item is None or self._item["type"] != wanted:
                yield from self.end("completed")
                more: Fields = {"role": "assistant"} if wanted == "message" else {"summary": []}
                yield from self._begin(wanted, more | {"content": []})
            self._text += text
            yield f"{self._name}.delta", self._position | {"delta": text} | self._logprobs

    def end(self, status: str) -> Iterator[_Event]:
        """End the item that is being written, if there is one."""
        if (item := self._item) is None:
            return
        if item["type"] == "function_call":
            item = item | {"arguments": self._text, "status": status}
            yield f"{self._name}.done", self._position | {"name": item["name"], "arguments": self._text}
        else:
            part = _PARTS[item["type"]] | {"text": self._text}
            item = item | {"content": [part], "status": status}
            yield f"{self._name}.done", self._position | {"text": self._text} | self._logprobs
            yield "content_part.done", self._position | {"part": part}
        yield "output_item.done", {"output_index": len(self.items), "item": item}
        self.items.append(item)
        self._item = None

    def _begin(self, kind: str, fields: Fields) -> Iterator[_Event]:
        self._text = ""
        item_id = f"{_PREFIXES[kind]}_{secrets.token_hex(16)}"
        self._item = {"id": item_id, "type": kind, "status": "in_progress", **fields}
        yield "output_item.added", {"output_index": len(self.items), "item": self._item}
        if kind != "function_call":
            yield "content_part.added", self._position | {"part": _PARTS[kind] | {"text": ""}}

    @property
    def _kind(self) -> str:
        return "" if self._item is None else self._item["type"]

    @property
    def _name(self) -> str:
        return "function_call_arguments" if self._kind == "function_call" else _PARTS[self._kind]["type"]

    @property
    def _position(self) -> Fields:
        assert self._item is not None
        position = {"item_id": self._item["id"], "output_index": len(self.items)}
        return position if self._kind == "function_call" else position | {"content_index": 0}

    @property
    def _logprobs(self) -> Fields:
        return {"logprobs": []} if self._kind == "message" else {}


class ResponsesBuilder(AnswerBuilder):
    """Answers of /v1/responses."""

    ending = ""
    prefix = "resp"

    def __init__(self, context: RequestContext, model: ServedModel, request: ResponsesRequest, keep: Keep) -> None:
        """Begin.

        Args:
            context: what is answered.
            model: the model.
            request: the request, some of which the answer repeats.
            keep: called when the response has ended.
        """
        super().__init__(context, model)
        self._keep = keep
        self._repeated = _repeated(request)
        self._repeated |= {"temperature": context.config.temperature, "top_p": context.config.top_p}
        self._output = _Output()
        self._num_events = 0

    def whole(self) -> Fields:
        """Return the answer; it must have ended."""
        return self._response(*self._results)

    def frame(self, fields: Fields) -> str:
        """Return an event as it is sent."""
        return f"event: {fields['type']}\ndata: {to_json(fields)}\n\n"

    def failure(self, error: ApiError) -> str:
        """Return what ends a stream that has begun."""
        detail = error.content["error"]
        return self.frame(self._event("error", {name: detail[name] for name in ("code", "message", "param")}))

    def chunks(self, event: StepEvent) -> Iterator[Fields]:
        """Yield the events of a step."""
        if not self._num_events:
            for name in ("response.created", "response.in_progress"):
                yield self._event(name, {"response": self._response()})
        for name, fields in self._steps(event):
            yield self._event(f"response.{name}", fields)

    def _steps(self, event: StepEvent) -> Iterator[_Event]:
        yield from self._output.add(self._read(event)[2])
        if event.result is None:
            return
        if self._output.is_empty:
            yield from self._output.add([("content", "")])
        status = _status_of(event.result)
        yield from self._output.end(status)
        self._keep(self._id, self._output.items)
        yield status, {"response": self._response(event.result)}

    def _event(self, name: str, fields: Fields) -> Fields:
        self._num_events += 1
        return {"type": name, "sequence_number": self._num_events - 1, **fields}

    def _response(self, result: GenerationResult | None = None) -> Fields:
        status = "in_progress" if result is None else _status_of(result)
        fields: Fields = {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "model": self._model.id,
            "output": list(self._output.items),
            **self._repeated,
        }
        if result is not None:
            fields |= {"usage": self._tokens(result), "speculant": speculation_of(self.context.config.seed, [result])}
        return fields

    def _tokens(self, result: GenerationResult) -> Fields:
        """Return token counts; those of thoughts are counted by their text."""
        parts = (part for item in self._output.items if item["type"] == "reasoning" for part in item["content"])
        thoughts = "".join(part["text"] for part in parts)
        num_read, num_written = len(result.prompt_token_ids), len(result.token_ids)
        num_thoughts = min(num_written, len(self._model.target.encode(thoughts))) if thoughts else 0
        return {
            "input_tokens": num_read,
            "input_tokens_details": {"cached_tokens": result.num_from_prefix_cache, "cache_write_tokens": 0},
            "output_tokens": num_written,
            "output_tokens_details": {"reasoning_tokens": num_thoughts},
            "total_tokens": num_read + num_written,
        }


def _status_of(result: GenerationResult) -> str:
    return "incomplete" if result.finish_reason == "length" else "completed"


def _repeated(request: ResponsesRequest) -> Fields:
    """Return what the answer repeats of a request, with what stands for fields that it lacks."""
    text = {} if request.text is None else request.text.model_dump(exclude_none=True, by_alias=True)
    choice = request.tool_choice
    return {
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "metadata": request.metadata or {},
        "parallel_tool_calls": request.parallel_tool_calls,
        "previous_response_id": request.previous_response_id,
        "reasoning": {} if request.reasoning is None else request.reasoning.model_dump(exclude_none=True),
        "store": request.store,
        "text": {"format": {"type": "text"}} | text,
        "tool_choice": choice.model_dump() if isinstance(choice, ChosenFunction) else choice or "auto",
        "tools": [tool.model_dump(exclude_none=True) for tool in request.tools or ()],
        "truncation": "disabled",
    }
