"""Builds answers of Anthropic's Messages API: blocks, events and errors."""

from __future__ import annotations

import json
from collections.abc import Iterator

from speculant_graph.errors import SpeculantError
from speculant_verifier.http.builders import AnswerBuilder, RequestContext, ServedModel, speculation_of, to_json
from speculant_verifier.http.errors import anthropic_fields
from speculant_verifier.http.token_texts import Fields
from speculant_verifier.results import GenerationResult, StepEvent

_BLOCKS: dict[str, tuple[Fields, str, str]] = {
    "content": ({"type": "text", "text": ""}, "text_delta", "text"),
    "reasoning": ({"type": "thinking", "thinking": "", "signature": ""}, "thinking_delta", "thinking"),
    "arguments": ({"type": "tool_use", "input": {}}, "input_json_delta", "partial_json"),
}
"""Maps each kind of piece to its empty block, the type of the block's deltas, and the name of the deltas' text
field."""
_SIGNATURE = "unsigned"
"""Placeholder for the signature of thinking blocks; clients send back only thinking blocks with a signature."""
_REASONS = {"tool_calls": "tool_use", "length": "max_tokens"}


class MessagesBuilder(AnswerBuilder):
    """Answers of /v1/messages."""

    prefix, ending = "msg", b""

    def __init__(self, context: RequestContext, model: ServedModel, *, shows_reasoning: bool) -> None:
        """Start the answer to a request.

        Args:
            context: the request.
            model: the model.
            shows_reasoning: whether the answer has thinking blocks.
        """
        super().__init__(context, model)
        self._shows_reasoning = shows_reasoning
        self._blocks: list[Fields] = []
        self._kind = ""  # kind of the open block
        self._text = ""

    def frame(self, fields: Fields) -> bytes:
        """Encode an event of the Messages API as a server-sent event."""
        return b"event: %b\ndata: %b\n\n" % (fields["type"].encode(), to_json(fields))

    def failure(self, error: SpeculantError) -> bytes:
        """Encode an error that ends a stream."""
        return self.frame(anthropic_fields(error))

    def opening(self) -> Iterator[Fields]:
        """Yield the first event of a stream, which is sent when the request is admitted."""
        usage = {"input_tokens": len(self.context.prompts[0]), "output_tokens": 0}
        yield {"type": "message_start", "message": self._message([], None, None, usage)}

    def chunks(self, event: StepEvent) -> Iterator[Fields]:
        """Yield the stream events for one event of the decoder."""
        _, choice, pieces = self._read(event)
        for kind, text in pieces:
            choice.take(kind, text)
            if kind == "name":
                yield from self._begin("arguments", {"id": _call_id(choice.calls[-1]["id"]), "name": text})
            elif kind != "reasoning" or self._shows_reasoning:
                if kind != self._kind:
                    yield from self._begin(kind, {})
                yield from self._add(text)
        if event.result is None:
            return
        if not self._blocks:
            yield from self._begin("content", {})
        yield from self._end()
        reason, stop = self._reason(choice.reason, event.result)
        delta = {"stop_reason": reason, "stop_sequence": stop}
        speculation = speculation_of(self.context.config.seed, [event.result])
        yield {"type": "message_delta", "delta": delta, "usage": _usage(event.result), "speculant": speculation}
        yield {"type": "message_stop"}

    def whole(self) -> Fields:
        """Return the whole answer; decoding must have finished."""
        [result] = self._results
        reason, stop = self._reason(self._choices[0].reason, result)
        message = self._message(self._blocks, reason, stop, _usage(result))
        return message | {"speculant": speculation_of(self.context.config.seed, [result])}

    def _message(self, blocks: list[Fields], reason: str | None, stop: str | None, usage: Fields) -> Fields:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model.id,
            "content": blocks,
            "stop_reason": reason,
            "stop_sequence": stop,
            "usage": usage,
        }

    def _begin(self, kind: str, fields: Fields) -> Iterator[Fields]:
        yield from self._end()
        block = _BLOCKS[kind][0] | fields
        self._kind, self._text = kind, ""
        self._blocks.append(block)
        yield {"type": "content_block_start", "index": len(self._blocks) - 1, "content_block": dict(block)}

    def _add(self, text: str) -> Iterator[Fields]:
        self._text += text
        _, kind, name = _BLOCKS[self._kind]
        yield self._delta({"type": kind, name: text})

    def _end(self) -> Iterator[Fields]:
        """End the open block, if there is one."""
        if not self._kind:
            return
        block = self._blocks[-1]
        if self._kind == "arguments":
            block["input"] = _input_of(self._text)
        else:
            block[_BLOCKS[self._kind][2]] = self._text
        if self._kind == "reasoning":
            block["signature"] = _SIGNATURE
            yield self._delta({"type": "signature_delta", "signature": _SIGNATURE})
        self._kind = ""
        yield {"type": "content_block_stop", "index": len(self._blocks) - 1}

    def _delta(self, delta: Fields) -> Fields:
        return {"type": "content_block_delta", "index": len(self._blocks) - 1, "delta": delta}

    def _reason(self, reason: str, result: GenerationResult) -> tuple[str, str | None]:
        """Return the stop reason, and the stop text if one ended the answer."""
        if reason != "stop":
            return _REASONS.get(reason, reason), None
        text = self._model.target.decode(result.token_ids)
        found = [(index, stop) for stop in self.context.config.stop if (index := text.find(stop)) >= 0]
        return ("stop_sequence", min(found)[1]) if found else ("end_turn", None)


def _call_id(identifier: str) -> str:
    return identifier.replace("call_", "toolu_", 1)


def _input_of(arguments: str) -> Fields:
    """Return a call's arguments as a JSON object; text of any other form becomes its field ``arguments``."""
    try:
        found = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {"arguments": arguments}


def _usage(result: GenerationResult) -> Fields:
    cached = result.num_from_prefix_cache
    return {
        "input_tokens": len(result.prompt_token_ids) - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": len(result.token_ids),
    }
