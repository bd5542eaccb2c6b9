"""Events of the decoder in the shapes of the two endpoints, whole or piece by piece."""

from __future__ import annotations

import json
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, cast

from speculant_graph.types import TokenId
from speculant_verifier.harmony import ChannelSplitter, HarmonyTokens
from speculant_verifier.http.answers import (
    Answer,
    AnswerCall,
    AnswerFunction,
    AnswerMessage,
    ChatChoice,
    ChatChunk,
    ChatCompletion,
    ChatLogprobs,
    ChunkChoice,
    Completion,
    CompletionChoice,
    Delta,
    FinishReason,
)
from speculant_verifier.http.errors import ApiError
from speculant_verifier.http.logprobs import Offsets, TokenTexts
from speculant_verifier.http.statistics import speculation_of, usage_of
from speculant_verifier.model import TargetModel
from speculant_verifier.results import GenerationResult, StepEvent, TokenLogprobs
from speculant_verifier.tool_calls import CallStyle, JsonCalls
from speculant_verifier.tool_calls.pieces import Piece, PieceKind, Splitter


@dataclass(frozen=True, slots=True)
class Job:
    """One request, ready to be decoded."""

    prompts: list[list[TokenId]]
    """What is continued."""
    num_samples: int
    """Choices of each prompt."""
    seed: int
    """Seed of the first of them."""
    with_logprobs: bool
    """Whether log-probabilities go with the tokens."""
    with_usage: bool
    """Whether a stream ends with token counts."""
    model: str
    """How clients call the model."""
    predicted: tuple[TokenId, ...] = ()
    """The prediction."""
    calls: CallStyle | None = None
    """How calls of tools are written; None if there are no tools."""

    @property
    def num_choices(self) -> int:
        """Choices of all prompts."""
        return len(self.prompts) * self.num_samples


@dataclass(slots=True)
class _CallParts:
    """A call, as far as it has come."""

    name: str
    id: str = field(default_factory=lambda: f"call_{secrets.token_hex(12)}")
    arguments: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Choice:
    """What is known of one choice so far."""

    offsets: Offsets
    splitter: Splitter | None = None
    has_begun: bool = False
    texts: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[_CallParts] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    result: GenerationResult | None = None


class Shape(ABC):
    """One answer in the making."""

    ending = "data: [DONE]\n\n"
    """What a stream ends with."""

    def __init__(self, job: Job, target: TargetModel, texts: TokenTexts, harmony: HarmonyTokens | None) -> None:
        """Begin.

        Args:
            job: what is answered.
            target: the model.
            texts: of its tokens.
            harmony: splits what the model writes into channels.
        """
        self._job, self._texts = job, texts
        self._created = int(time.time())
        self._number = secrets.token_hex(16)
        self._choices = [_Choice(Offsets(target), _splitter(job, target, harmony)) for _ in range(job.num_choices)]

    def frame(self, answer: Answer) -> str:
        """Return a chunk as it is sent."""
        return f"data: {answer.to_json()}\n\n"

    def failure(self, error: ApiError) -> str:
        """Return what ends a stream that has begun, before its ending."""
        return f"data: {json.dumps(error.content)}\n\n"

    def add(self, event: StepEvent) -> None:
        """Take an event for the whole answer."""
        _, choice, pieces = self._read(event)
        for kind, text in pieces:
            if kind == "content":
                choice.texts.append(text)
            elif kind == "reasoning":
                choice.reasoning.append(text)
            elif kind == "arguments":
                choice.calls[-1].arguments.append(text)
            else:
                choice.calls.append(_CallParts(text))
        choice.logprobs += event.logprobs

    def chunks(self, event: StepEvent) -> Iterator[Answer]:
        """Yield what a stream says of an event, and after the last one of all choices."""
        yield from self._pieces(event)
        if all(choice.result is not None for choice in self._choices) and self._job.with_usage:
            yield self._last()

    @abstractmethod
    def whole(self) -> Answer:
        """Return the answer; all choices must have ended."""

    @abstractmethod
    def _pieces(self, event: StepEvent) -> Iterator[Answer]: ...

    @abstractmethod
    def _last(self) -> Answer: ...

    def _read(self, event: StepEvent) -> tuple[int, _Choice, list[Piece]]:
        """Note an event; return its choice, and what it adds to that."""
        index = event.prompt_index * self._job.num_samples + event.sample
        choice = self._choices[index]
        choice.result = event.result
        if choice.splitter is None:
            return index, choice, [("content", event.text)] if event.text else []
        return index, choice, choice.splitter.push(event.token_ids, event.text, final=event.result is not None)

    @property
    def _results(self) -> list[GenerationResult]:
        return [choice.result for choice in self._choices if choice.result is not None]

    def _totals(self, *, with_usage: bool = True) -> dict[str, object]:
        """Return the fields that say something of all choices."""
        totals: dict[str, object] = {"speculant": speculation_of(self._job.seed, self._results)}
        if with_usage:
            totals["usage"] = usage_of(
                [len(prompt) for prompt in self._job.prompts], self._results, self._job.predicted
            )
        return totals

    def _totals_of_piece(self, *, is_end: bool) -> dict[str, object]:
        """Return them for a chunk of a choice; they are in the very last chunk only."""
        if self._job.with_usage:
            return {"usage": None}
        is_last = is_end and len(self._results) == len(self._choices)
        return self._totals(with_usage=False) if is_last else {}


class ChatShape(Shape):
    """The shape of /v1/chat/completions."""

    def whole(self) -> ChatCompletion:
        """Return the answer."""
        choices = []
        for index, choice in enumerate(self._choices):
            fields: dict[str, object] = {}
            if isinstance(choice.splitter, ChannelSplitter):
                fields["reasoning_content"] = "".join(choice.reasoning)
            if choice.calls:
                fields["tool_calls"] = [
                    AnswerCall(
                        id=call.id,
                        type="function",
                        function=AnswerFunction(name=call.name, arguments="".join(call.arguments)),
                    )
                    for call in choice.calls
                ]
            content = "".join(choice.texts) or (None if choice.calls else "")
            message = AnswerMessage(role="assistant", content=content, refusal=None, **fields)
            choices.append(
                ChatChoice(
                    index=index,
                    message=message,
                    logprobs=self._logprobs(choice.logprobs),
                    finish_reason=_reason(choice),
                )
            )
        return ChatCompletion(object="chat.completion", choices=choices, **self._head(), **self._totals())

    def _pieces(self, event: StepEvent) -> Iterator[Answer]:
        index, choice, pieces = self._read(event)
        if not choice.has_begun:
            choice.has_begun = True
            yield self._chunk(index, Delta(role="assistant", content=""), ())
        logprobs = event.logprobs if self._job.with_logprobs else ()
        if logprobs and not pieces:
            pieces = [("content", "")]
        for piece in pieces:
            yield self._chunk(index, _delta(choice, *piece), logprobs)
            logprobs = ()
        if event.result is not None:
            yield self._chunk(index, Delta(), (), _reason(choice))

    def _last(self) -> Answer:
        return ChatChunk(object="chat.completion.chunk", choices=[], **self._head(), **self._totals())

    def _chunk(
        self, index: int, delta: Delta, logprobs: Sequence[TokenLogprobs], reason: FinishReason | None = None
    ) -> ChatChunk:
        choice = ChunkChoice(
            index=index, delta=delta, logprobs=self._logprobs(logprobs) if logprobs else None, finish_reason=reason
        )
        totals = self._totals_of_piece(is_end=reason is not None)
        return ChatChunk(object="chat.completion.chunk", choices=[choice], **self._head(), **totals)

    def _logprobs(self, logprobs: Sequence[TokenLogprobs]) -> ChatLogprobs | None:
        return self._texts.chat(logprobs) if self._job.with_logprobs else None

    def _head(self) -> dict[str, object]:
        return {"id": f"chatcmpl-{self._number}", "created": self._created, "model": self._job.model}


class CompletionShape(Shape):
    """The shape of /v1/completions."""

    def whole(self) -> Completion:
        """Return the answer."""
        choices = [
            self._choice(index, choice, "".join(choice.texts), choice.logprobs, _reason(choice))
            for index, choice in enumerate(self._choices)
        ]
        return self._completion(choices, self._totals())

    def _pieces(self, event: StepEvent) -> Iterator[Answer]:
        index, choice, pieces = self._read(event)
        text = "".join(text for _, text in pieces)
        has_logprobs = bool(event.logprobs) and self._job.with_logprobs
        if text or has_logprobs or event.result is not None:
            reason = None if event.result is None else _reason(choice)
            piece = self._choice(index, choice, text, event.logprobs, reason)
            yield self._completion([piece], self._totals_of_piece(is_end=reason is not None))

    def _last(self) -> Answer:
        return self._completion([], self._totals())

    def _choice(
        self,
        index: int,
        choice: _Choice,
        text: str,
        logprobs: Sequence[TokenLogprobs],
        reason: FinishReason | None,
    ) -> CompletionChoice:
        shaped = self._texts.completion(logprobs, choice.offsets) if self._job.with_logprobs else None
        return CompletionChoice(index=index, text=text, logprobs=shaped, finish_reason=reason)

    def _completion(self, choices: list[CompletionChoice], totals: dict[str, object]) -> Completion:
        name: Literal["text_completion"] = "text_completion"
        return Completion(
            id=f"cmpl-{self._number}",
            object=name,
            created=self._created,
            model=self._job.model,
            choices=choices,
            **totals,
        )


def _splitter(job: Job, target: TargetModel, harmony: HarmonyTokens | None) -> Splitter | None:
    """Return what splits an answer; None where all of it is text."""
    if harmony is not None:
        return ChannelSplitter(harmony, target.decode, finds_calls=job.calls is not None)
    return None if job.calls is None else JsonCalls(job.calls.mark, job.calls.end)


def _delta(choice: _Choice, kind: PieceKind, text: str) -> Delta:
    """Return what a piece adds to a streamed message, and note the calls among them."""
    if kind == "content":
        return Delta(content=text)
    if kind == "reasoning":
        return Delta(reasoning_content=text)
    if kind == "arguments":
        choice.calls[-1].arguments.append(text)
        piece = AnswerCall(index=len(choice.calls) - 1, function=AnswerFunction(arguments=text))
    else:
        call = _CallParts(text)
        choice.calls.append(call)
        function = AnswerFunction(name=text, arguments="")
        piece = AnswerCall(index=len(choice.calls) - 1, id=call.id, type="function", function=function)
    return Delta(tool_calls=[piece])


def _is_json(text: str) -> bool:
    """Whether arguments are whole: a stop text may cut them off."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _reason(choice: _Choice) -> FinishReason:
    assert choice.result is not None
    if choice.calls and choice.result.finish_reason == "stop" and _is_json("".join(choice.calls[-1].arguments)):
        return "tool_calls"
    return cast(FinishReason, choice.result.finish_reason)  # errors became an answer of their own
