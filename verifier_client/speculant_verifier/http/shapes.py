"""Events of the decoder in the shapes of the two endpoints, whole or piece by piece."""

from __future__ import annotations

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
from speculant_verifier.http.logprobs import Offsets, TokenTexts
from speculant_verifier.http.statistics import speculation_of, usage_of
from speculant_verifier.model import TargetModel
from speculant_verifier.results import GenerationResult, StepEvent, TokenLogprobs


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

    @property
    def num_choices(self) -> int:
        """Choices of all prompts."""
        return len(self.prompts) * self.num_samples


@dataclass(slots=True)
class _Choice:
    """What is known of one choice so far."""

    offsets: Offsets
    splitter: ChannelSplitter | None = None
    has_begun: bool = False
    texts: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    result: GenerationResult | None = None


class Shape(ABC):
    """One answer in the making."""

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
        self._choices = [
            _Choice(Offsets(target), ChannelSplitter(harmony, target.decode) if harmony else None)
            for _ in range(job.num_choices)
        ]

    def add(self, event: StepEvent) -> None:
        """Take an event for the whole answer."""
        _, choice, reasoning, text = self._read(event)
        choice.texts.append(text)
        choice.reasoning.append(reasoning)
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

    def _read(self, event: StepEvent) -> tuple[int, _Choice, str, str]:
        """Note an event; return its choice, and what it adds to the choice's reasoning and text."""
        index = event.prompt_index * self._job.num_samples + event.sample
        choice = self._choices[index]
        choice.result = event.result
        if choice.splitter is None:
            return index, choice, "", event.text
        return index, choice, *choice.splitter.push(event.token_ids, event.text, final=event.result is not None)

    @property
    def _results(self) -> list[GenerationResult]:
        return [choice.result for choice in self._choices if choice.result is not None]

    def _totals(self, *, with_usage: bool = True) -> dict[str, object]:
        """Return the fields that say something of all choices."""
        totals: dict[str, object] = {"speculant": speculation_of(self._job.seed, self._results)}
        if with_usage:
            totals["usage"] = usage_of([len(prompt) for prompt in self._job.prompts], self._results)
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
            reasoning = {"reasoning_content": "".join(choice.reasoning)} if choice.splitter is not None else {}
            message = AnswerMessage(role="assistant", content="".join(choice.texts), refusal=None, **reasoning)
            choices.append(
                ChatChoice(
                    index=index,
                    message=message,
                    logprobs=self._logprobs(choice.logprobs),
                    finish_reason=_reason(choice.result),
                )
            )
        return ChatCompletion(object="chat.completion", choices=choices, **self._head(), **self._totals())

    def _pieces(self, event: StepEvent) -> Iterator[Answer]:
        index, choice, reasoning, text = self._read(event)
        if not choice.has_begun:
            choice.has_begun = True
            yield self._chunk(index, Delta(role="assistant", content=""), ())
        if text or reasoning or (event.logprobs and self._job.with_logprobs):
            fields = {"reasoning_content": reasoning} if reasoning else {}
            if text or not reasoning:
                fields["content"] = text
            yield self._chunk(index, Delta(**fields), event.logprobs)
        if event.result is not None:
            yield self._chunk(index, Delta(), (), _reason(event.result))

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
            self._choice(index, choice, "".join(choice.texts), choice.logprobs, _reason(choice.result))
            for index, choice in enumerate(self._choices)
        ]
        return self._completion(choices, self._totals())

    def _pieces(self, event: StepEvent) -> Iterator[Answer]:
        index, choice, _, text = self._read(event)
        has_logprobs = bool(event.logprobs) and self._job.with_logprobs
        if text or has_logprobs or event.result is not None:
            reason = None if event.result is None else _reason(event.result)
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


def _reason(result: GenerationResult | None) -> FinishReason:
    assert result is not None
    return cast(FinishReason, result.finish_reason)  # errors became an answer of their own
