"""Builds the endpoints' answers from decoder events, as whole JSON objects or as chunks of a stream."""

from __future__ import annotations

import json
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, zip_longest

from speculant_graph.config import GenerationConfig
from speculant_graph.errors import SpeculantError
from speculant_graph.types import SessionOptions, TokenId
from speculant_verifier.conversation.chat_format import ChatFormat
from speculant_verifier.conversation.tool_calls import Splitter
from speculant_verifier.http.custom_calls import AnswerPiece, CustomCalls
from speculant_verifier.http.errors import openai_fields
from speculant_verifier.http.token_texts import Fields, TokenTexts
from speculant_verifier.model import TargetModel
from speculant_verifier.results import GenerationResult, StepEvent, TokenLogprobs


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The served model, with data that is needed to build its answers."""

    id: str
    """Name by which clients request the model."""
    target: TargetModel
    """The model."""
    texts: TokenTexts
    """Texts and bytes of the model's tokens, for log-probabilities."""
    chat_format: ChatFormat | None
    """Chat format of the model; None if answers are plain text."""


@dataclass(frozen=True, slots=True)
class RequestContext:
    """A client's request, converted to the decoder's input."""

    prompts: list[list[TokenId]]
    """The request's prompts, as token ids."""
    config: GenerationConfig
    """Generation settings, which apply to all prompts."""
    session: SessionOptions | None = None
    """Options of the request's session with the drafter; None for the server's options."""
    with_usage: bool = False
    """Whether a streamed answer ends with token counts."""
    tool_names: frozenset[str] | None = None
    """Names of the tools that the model may call; None if it may call none."""
    custom: frozenset[str] = frozenset()
    """Names of the custom tools, whose input is text instead of JSON."""
    predicted: tuple[TokenId, ...] = ()
    """Tokens of the predicted output in the request; empty if there is no prediction."""
    shared_length: int = 0
    """Number of tokens at the start of the prompt that are instructions and tools."""

    @property
    def num_choices(self) -> int:
        """Number of choices in the answer, over all prompts."""
        return len(self.prompts) * self.config.n


_CALLS = {"name": ("function", "arguments"), "custom": ("custom", "input")}
"""Maps each kind of piece that begins a tool call to the call's type and the name of the call's text field."""


@dataclass(slots=True)
class _Choice:
    """State of one choice of the answer while it is decoded."""

    splitter: Splitter | None
    custom: CustomCalls | None
    texts: dict[str, str] = field(default_factory=lambda: {"content": "", "reasoning": ""})
    calls: list[Fields] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    result: GenerationResult | None = None

    def take(self, kind: str, text: str) -> Fields:
        """Add a piece of the answer; return its delta for a streamed message."""
        if kind in self.texts:
            self.texts[kind] += text
            return {"content" if kind == "content" else "reasoning_content": text}
        if kind in _CALLS:
            call_type, content = _CALLS[kind]
            call: Fields = {
                "id": f"call_{secrets.token_hex(12)}",
                "type": call_type,
                call_type: {"name": text, content: ""},
            }
            self.calls.append(call)
            return {"tool_calls": [{"index": len(self.calls) - 1, **call, call_type: {**call[call_type]}}]}
        call_type = self.calls[-1]["type"]
        self.calls[-1][call_type][kind] += text
        return {"tool_calls": [{"index": len(self.calls) - 1, call_type: {kind: text}}]}

    @property
    def reason(self) -> str:
        """Finish reason of a choice that ended.

        A failed choice has no finish reason, because the client gets an error instead.
        """
        assert self.result is not None
        reason = self.result.finish_reason
        if not self.calls or reason != "stop" or self.splitter is None:
            return reason
        is_whole = self.splitter.ends_in_call or _is_whole(self.calls[-1])
        return "tool_calls" if is_whole else reason


class AnswerBuilder(ABC):
    """Builds one answer, as a whole or as chunks of a stream."""

    ending = b"data: [DONE]\n\n"
    """Last bytes of every streamed answer."""
    prefix: str
    """Prefix of the ids of answers, such as "chatcmpl"."""

    def __init__(self, context: RequestContext, model: ServedModel) -> None:
        """Start the answer to a request."""
        self.context, self._model = context, model
        self._created = int(time.time())
        self._id = f"{self.prefix}-{secrets.token_hex(16)}"
        self._choices = [
            _Choice(splitter_of(context, model), CustomCalls(context.custom) if context.custom else None)
            for _ in range(context.num_choices)
        ]

    def opening(self) -> Iterator[Fields]:
        """Yield the first chunks of a stream, which are sent when the request is admitted."""
        return iter(())

    @abstractmethod
    def chunks(self, event: StepEvent) -> Iterator[Fields]:
        """Yield the chunks for an event and, after the last choice has ended, the closing chunk."""

    @abstractmethod
    def whole(self) -> Fields:
        """Return the answer; all choices must have ended and all their chunks must have been consumed."""

    def begun(self) -> bytes:
        """Return the encoded first chunks of a stream."""
        return b"".join(map(self.frame, self.opening()))

    def sent(self, event: StepEvent) -> bytes:
        """Return the encoded chunks for an event."""
        return b"".join(map(self.frame, self.chunks(event)))

    def take(self, event: StepEvent) -> None:
        """Record an event of an answer that is not streamed."""
        for _ in self.chunks(event):
            pass

    def frame(self, fields: Fields) -> bytes:
        """Encode a chunk as a server-sent event."""
        return b"data: %b\n\n" % to_json(fields)

    def failure(self, error: SpeculantError) -> bytes:
        """Encode an error for a stream that has begun; :attr:`ending` follows the error."""
        return self.frame(openai_fields(error))

    def _read(self, event: StepEvent) -> tuple[int, _Choice, list[AnswerPiece]]:
        """Record an event; return the index of its choice, the choice, and the new pieces of the answer."""
        index = event.prompt_index * self.context.config.n + event.sample
        choice = self._choices[index]
        choice.result = event.result
        if choice.splitter is None:
            return index, choice, [("content", event.text)] if event.text else []
        is_last = event.result is not None
        is_cut = event.result is not None and event.result.finish_reason == "length"
        pieces = choice.splitter.push(event.token_ids, event.text, final=is_last, is_cut=is_cut)
        custom = choice.custom
        return index, choice, list(pieces) if custom is None else custom.push(pieces, final=is_last)

    @property
    def _results(self) -> list[GenerationResult]:
        return [choice.result for choice in self._choices if choice.result is not None]


class ChatBuilder(AnswerBuilder):
    """Builds answers of /v1/chat/completions, each with a list of choices."""

    prefix, kind, chunk_kind = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def opening(self) -> Iterator[Fields]:
        """Yield the first chunk of each choice, with the message's role."""
        usage = {"usage": None} if self.context.with_usage else {}
        for index in range(len(self._choices)):
            begun = {"index": index, "delta": {"role": "assistant", "content": ""}, "logprobs": None}
            yield self._object(self.chunk_kind, [begun | {"finish_reason": None}]) | usage

    def chunks(self, event: StepEvent) -> Iterator[Fields]:
        """Yield the chunks for an event and, after the last choice has ended, the closing chunk."""
        index, choice, pieces = self._read(event)
        for fields, reason in self._additions(event, choice, pieces):
            chunk = self._object(self.chunk_kind, [{"index": index, **fields, "finish_reason": reason}])
            if self.context.with_usage:
                yield chunk | {"usage": None}
            else:  # statistics are in the last chunk
                yield chunk | (self._speculation() if reason is not None and self._is_over else {})
        if self.context.with_usage and self._is_over:
            yield self._object(self.chunk_kind, []) | self._usage() | self._speculation()

    def whole(self) -> Fields:
        """Return the answer."""
        choices = [
            {"index": index, **self._choice(choice), "finish_reason": choice.reason}
            for index, choice in enumerate(self._choices)
        ]
        return self._object(self.kind, choices) | self._usage() | self._speculation()

    def _additions(
        self, event: StepEvent, choice: _Choice, pieces: list[AnswerPiece]
    ) -> Iterator[tuple[Fields, str | None]]:
        """For each chunk of a choice, yield the chunk's fields and its finish reason, which may be None."""
        choice.logprobs += event.logprobs
        logprobs = self._logprobs(event.logprobs) if event.logprobs else None
        for kind, text in pieces or ([("content", "")] if logprobs else []):
            yield {"delta": choice.take(kind, text), "logprobs": logprobs}, None
            logprobs = None
        if event.result is not None:
            yield {"delta": {}, "logprobs": None}, choice.reason

    def _choice(self, choice: _Choice) -> Fields:
        """Return the JSON fields of a choice that has ended."""
        content = choice.texts["content"] or (None if choice.calls else "")
        message: Fields = {"role": "assistant", "content": content, "refusal": None}
        if self._model.chat_format is not None and self._model.chat_format.harmony is not None:
            message["reasoning_content"] = choice.texts["reasoning"]
        if choice.calls:
            message["tool_calls"] = choice.calls
        return {"message": message, "logprobs": self._logprobs(choice.logprobs)}

    def _logprobs(self, tokens: Sequence[TokenLogprobs]) -> Fields | None:
        return None if self.context.config.logprobs is None else {"content": self._model.texts.entries(tokens)}

    def _object(self, kind: str, choices: list[Fields]) -> Fields:
        head = {"id": self._id, "object": kind, "created": self._created, "model": self._model.id}
        return head | {"choices": choices}

    def _usage(self) -> Fields:
        return {"usage": usage_of(self.context, self._results)}

    def _speculation(self) -> Fields:
        return {"speculant": speculation_of(self.context.config.seed, self._results)}

    @property
    def _is_over(self) -> bool:
        return all(choice.result is not None for choice in self._choices)


class CompletionBuilder(ChatBuilder):
    """Builds answers of /v1/completions, each with a list of choices that contain only text."""

    prefix, kind, chunk_kind = "cmpl", "text_completion", "text_completion"

    def opening(self) -> Iterator[Fields]:
        """Yield nothing, because a text completion has no role to announce."""
        return iter(())

    def _additions(
        self, event: StepEvent, choice: _Choice, pieces: list[AnswerPiece]
    ) -> Iterator[tuple[Fields, str | None]]:
        for piece in pieces:
            choice.take(*piece)
        if event.text or event.result is not None:
            yield {"text": event.text, "logprobs": None}, None if event.result is None else choice.reason

    def _choice(self, choice: _Choice) -> Fields:
        return {"text": choice.texts["content"], "logprobs": None}


def to_json(fields: Fields) -> bytes:
    """Encode an object as JSON; lone surrogates, which UTF-8 can't encode, become JSON escapes."""
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")


def splitter_of(context: RequestContext, model: ServedModel) -> Splitter | None:
    """Return the splitter for the reasoning, content and calls of an answer; None if answers are plain text."""
    return None if model.chat_format is None else model.chat_format.parser(context.tool_names)


def _is_whole(call: Fields) -> bool:
    """Tell whether a call without an end mark has complete arguments; a stop text may have cut them off."""
    if call["type"] == "custom":
        return False
    try:
        json.loads(call["function"]["arguments"])
    except (ValueError, RecursionError):
        return False
    return True


def usage_of(context: RequestContext, results: Sequence[GenerationResult]) -> Fields:
    """Return token counts; each prompt is counted once, and the output of every sample is counted.

    The ``results`` must be ordered by prompt.
    """
    prompt, completion = sum(map(len, context.prompts)), sum(len(result.token_ids) for result in results)
    count = context.config.n
    cached = sum(
        min(each.num_from_prefix_cache for each in results[start : start + count])
        for start in range(0, len(results), count)
    )
    usage: Fields = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    if predicted := context.predicted:
        # An accepted token counts if it follows the same token as in the prediction, up to the prediction's length.
        pairs = set(pairwise(predicted))
        shared = (min(len(predicted), sum(pair in pairs for pair in pairwise(each.token_ids))) for each in results)
        accepted = sum(min(each.num_accepted, count) for each, count in zip(results, shared, strict=True))
        usage["completion_tokens_details"] = {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": len(predicted) * len(results) - accepted,
        }
    return usage


def speculation_of(seed: int, results: Sequence[GenerationResult]) -> Fields:
    """Return the speculation statistics of an answer.

    Args:
        seed: the request's seed.
        results: results of all samples, at least one.
    """
    drafted = [sum(counts) for counts in zip_longest(*(each.drafted_by_depth for each in results), fillvalue=0)]
    accepted = [sum(counts) for counts in zip_longest(*(each.accepted_by_depth for each in results), fillvalue=0)]
    num_steps = sum(result.num_steps for result in results)
    num_tokens = sum(len(result.token_ids) for result in results)
    num_cached = sum(result.num_from_target_cache for result in results)
    times = max((result.times for result in results), key=lambda each: each.total_s)
    warning = next((result.warning for result in results if result.warning), "")
    return {
        "seed": seed,
        "steps": num_steps,
        "steps_without_drafter": sum(result.num_steps_without_drafter for result in results),
        "drafted": sum(drafted),
        "accepted": sum(accepted),
        "drafts": sum(result.num_drafts for result in results),
        "tried": sum(result.num_tried for result in results),
        "rolling_acceptance": results[-1].rolling_acceptance,
        "from_target_cache": num_cached,
        "mean_accepted_tokens": (num_tokens - num_cached) / num_steps if num_steps else None,
        "tree_hit_rate": sum(result.num_from_tree for result in results) / max(1, num_tokens),
        "target_cache_hit_rate": num_cached / max(1, num_tokens),
        "acceptance_by_depth": [
            part / whole if whole else 0.0 for part, whole in zip_longest(accepted, drafted, fillvalue=0)
        ],
        "seconds": {name.removesuffix("_s"): value for name, value in times.as_dict().items()},
        **({"warning": warning} if warning else {}),
    }
