"""Events of the decoder as items and events of a response."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from speculant_verifier.harmony import HarmonyTokens
from speculant_verifier.http.answers import Answer
from speculant_verifier.http.errors import ApiError
from speculant_verifier.http.logprobs import TokenTexts
from speculant_verifier.http.preparing import Prepared
from speculant_verifier.http.responses.answers import (
    IncompleteDetails,
    InputDetails,
    OutputDetails,
    OutputItem,
    OutputPart,
    ResponseAnswer,
    ResponseEvent,
    ResponseUsage,
    Status,
)
from speculant_verifier.http.responses.schemas import Item
from speculant_verifier.http.shapes import Shape
from speculant_verifier.http.statistics import speculation_of
from speculant_verifier.model import TargetModel
from speculant_verifier.results import GenerationResult, StepEvent
from speculant_verifier.tool_calls.pieces import Piece

_Fields = dict[str, Any]
_TEXT = {"message": "response.output_text", "reasoning": "response.reasoning_text"}


class Output:
    """The items of an answer in the making; every step of theirs is an event."""

    def __init__(self) -> None:
        self.items: list[OutputItem] = []
        """Those that have ended."""
        self._item: OutputItem | None = None
        self._texts: list[str] = []

    @property
    def is_empty(self) -> bool:
        """Whether nothing came yet."""
        return not self.items and self._item is None

    def add(self, pieces: Sequence[Piece]) -> Iterator[tuple[str, _Fields]]:
        """Take what came; yield types of events and their fields."""
        for kind, text in pieces:
            if kind == "name":
                yield from self.end("completed")
                call_id = f"call_{secrets.token_hex(12)}"
                yield from self._begin("function_call", "fc", call_id=call_id, name=text, arguments="")
                continue
            wanted = {"content": "message", "reasoning": "reasoning", "arguments": "function_call"}[kind]
            if self._item is None or self._item.type != wanted:
                yield from self.end("completed")
                if wanted == "message":
                    yield from self._begin("message", "msg", role="assistant", content=[])
                else:
                    yield from self._begin("reasoning", "rs", summary=[], content=[])
            self._texts.append(text)
            assert self._item is not None
            if self._item.type == "function_call":
                yield "response.function_call_arguments.delta", self._place() | {"delta": text}
            else:
                more: _Fields = {"logprobs": []} if wanted == "message" else {}
                yield f"{_TEXT[wanted]}.delta", self._place() | {"content_index": 0, "delta": text} | more

    def end(self, status: Status) -> Iterator[tuple[str, _Fields]]:
        """End the item that is being written, if there is one."""
        if (item := self._item) is None:
            return
        text = "".join(self._texts)
        if item.type == "function_call":
            item = item.model_copy(update={"arguments": text, "status": status})
            done = self._place() | {"name": item.name, "arguments": text}
            yield "response.function_call_arguments.done", done
        else:
            part, place = self._part(text), self._place() | {"content_index": 0}
            item = item.model_copy(update={"content": [part], "status": status})
            more: _Fields = {"logprobs": []} if item.type == "message" else {}
            yield f"{_TEXT[item.type]}.done", place | {"text": text} | more
            yield "response.content_part.done", place | {"part": part}
        yield "response.output_item.done", {"output_index": len(self.items), "item": item}
        self.items.append(item)
        self._item = None

    def _begin(self, kind: str, prefix: str, **fields: Any) -> Iterator[tuple[str, _Fields]]:
        self._texts = []
        self._item = OutputItem.model_validate(
            {"id": f"{prefix}_{secrets.token_hex(16)}", "type": kind, "status": "in_progress", **fields}
        )
        yield "response.output_item.added", {"output_index": len(self.items), "item": self._item}
        if kind != "function_call":
            yield "response.content_part.added", self._place() | {"content_index": 0, "part": self._part("")}

    def _place(self) -> _Fields:
        assert self._item is not None
        return {"item_id": self._item.id, "output_index": len(self.items)}

    def _part(self, text: str) -> OutputPart:
        assert self._item is not None
        if self._item.type == "message":
            return OutputPart(type="output_text", text=text, annotations=[], logprobs=[])
        return OutputPart(type="reasoning_text", text=text)


class ResponsesShape(Shape):
    """The shape of /v1/responses."""

    ending = ""

    def __init__(
        self,
        prepared: Prepared,
        target: TargetModel,
        texts: TokenTexts,
        harmony: HarmonyTokens | None,
        *,
        response_id: str,
        said: _Fields,
        on_end: Callable[[list[Item]], None],
    ) -> None:
        """Begin.

        Args:
            prepared: what is answered.
            target: the model.
            texts: of its tokens.
            harmony: splits what the model writes into channels.
            response_id: of the answer.
            said: what the answer repeats of the request.
            on_end: gets the output when all of it is there.
        """
        super().__init__(prepared.job, target, texts, harmony)
        config = prepared.config
        self._said = said | {"temperature": config.temperature, "top_p": config.top_p}
        self._id, self._target, self._on_end = response_id, target, on_end
        self._output = Output()
        self._num_events = 0

    def add(self, event: StepEvent) -> None:
        """Take an event for the whole answer."""
        for _ in self.chunks(event):
            pass

    def whole(self) -> ResponseAnswer:
        """Return the answer; it must have ended."""
        [result] = self._results
        return self._response(result)

    def frame(self, answer: Answer) -> str:
        """Return an event as it is sent."""
        assert isinstance(answer, ResponseEvent)
        return f"event: {answer.type}\n{super().frame(answer)}"

    def failure(self, error: ApiError) -> str:
        """Return what ends a stream that has begun."""
        detail = error.content["error"]
        fields = {name: detail[name] for name in ("code", "message", "param")}
        return self.frame(self._event("error", fields))

    def _pieces(self, event: StepEvent) -> Iterator[Answer]:
        if not self._num_events:
            for name in ("created", "in_progress"):
                yield self._event(f"response.{name}", {"response": self._response(None)})
        _, _, pieces = self._read(event)
        for name, fields in self._output.add(pieces):
            yield self._event(name, fields)
        if event.result is None:
            return
        if self._output.is_empty:
            for name, fields in self._output.add([("content", "")]):
                yield self._event(name, fields)
        is_cut = event.result.finish_reason == "length"
        for name, fields in self._output.end("incomplete" if is_cut else "completed"):
            yield self._event(name, fields)
        self._on_end([_as_item(item) for item in self._output.items])
        name = "response.incomplete" if is_cut else "response.completed"
        yield self._event(name, {"response": self._response(event.result)})

    def _last(self) -> Answer:
        raise AssertionError("token counts are in the last event")

    def _event(self, name: str, fields: _Fields) -> ResponseEvent:
        self._num_events += 1
        return ResponseEvent(type=name, sequence_number=self._num_events - 1, **fields)

    def _response(self, result: GenerationResult | None) -> ResponseAnswer:
        is_cut = result is not None and result.finish_reason == "length"
        fields: _Fields = {}
        if result is not None:
            fields = {"usage": self._usage(result), "speculant": speculation_of(self._job.seed, [result])}
        return ResponseAnswer(
            id=self._id,
            object="response",
            created_at=self._created,
            status="in_progress" if result is None else "incomplete" if is_cut else "completed",
            error=None,
            incomplete_details=IncompleteDetails(reason="max_output_tokens") if is_cut else None,
            model=self._job.model,
            output=list(self._output.items),
            **self._said,
            **fields,
        )

    def _usage(self, result: GenerationResult) -> ResponseUsage:
        thoughts = "".join(
            part.text for item in self._output.items if item.type == "reasoning" for part in item.content or ()
        )
        num_read, num_written = len(result.prompt_token_ids), len(result.token_ids)
        return ResponseUsage(
            input_tokens=num_read,
            input_tokens_details=InputDetails(cached_tokens=result.num_from_prefix_cache, cache_write_tokens=0),
            output_tokens=num_written,
            output_tokens_details=OutputDetails(
                reasoning_tokens=min(num_written, len(self._target.encode(thoughts))) if thoughts else 0
            ),
            total_tokens=num_read + num_written,
        )


def _as_item(item: OutputItem) -> Item:
    """Return what a later request would send for an item."""
    content = None if item.content is None else "".join(part.text for part in item.content)
    return Item(
        type=item.type,
        role=item.role,
        content=content,
        call_id=item.call_id,
        name=item.name,
        arguments=item.arguments,
    )
