"""Events of the decoder as items and events of a response."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence

from speculant_verifier.http.builders import (
    AnswerBuilder,
    Fields,
    RequestContext,
    ServedModel,
    speculation_of,
    to_json,
)
from speculant_verifier.http.errors import ApiError
from speculant_verifier.http.responses.schemas import Item
from speculant_verifier.results import GenerationResult, StepEvent
from speculant_verifier.tool_calls.pieces import Piece

_Event = tuple[str, Fields]
"""Its type, without "response.", and its fields."""
_KINDS = {"content": "message", "reasoning": "reasoning", "arguments": "function_call"}
_PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc"}
_PARTS: dict[str, Fields] = {
    "message": {"type": "output_text", "annotations": [], "logprobs": []},
    "reasoning": {"type": "reasoning_text"},
}


class Output:
    """The items of an answer in the making; every step of theirs is an event."""

    def __init__(self) -> None:
        self.items: list[Fields] = []
        """Those that have ended."""
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

    def __init__(
        self,
        context: RequestContext,
        model: ServedModel,
        response_id: str,
        repeated: Fields,
        on_end: Callable[[list[Item]], None],
    ) -> None:
        """Begin.

        Args:
            context: what is answered.
            model: the model.
            response_id: of the answer.
            repeated: what the answer repeats of the request.
            on_end: gets the output when all of it is there.
        """
        super().__init__(context, model)
        self._repeated = repeated | {"temperature": context.config.temperature, "top_p": context.config.top_p}
        self._id, self._on_end = response_id, on_end
        self._output = Output()
        self._num_events = 0

    def add(self, event: StepEvent) -> None:
        """Take an event for the whole answer."""
        for _ in self.chunks(event):
            pass

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
        self._on_end([_as_item(item) for item in self._output.items])
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
            fields |= {"usage": self._tokens(result), "speculant": speculation_of(self._context.config.seed, [result])}
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


def _as_item(item: Fields) -> Item:
    """Return what a later request would send for an item."""
    content = "".join(part["text"] for part in item["content"]) if "content" in item else None
    names = ("type", "role", "call_id", "name", "arguments")
    return Item.model_validate({"content": content} | {name: item.get(name) for name in names})
