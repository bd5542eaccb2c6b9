"""Converts prompts to requests for the engine, and the engine's outputs to text, events and results.

A character is returned as soon as all its bytes are known and it can't be the start of a stop text.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from copy import copy

from speculant_graph.config import GenerationConfig
from speculant_graph.errors import GenerationError, GenerationRequestError
from speculant_graph.strategies import StrategyName
from speculant_graph.types import SessionOptions, TokenId
from speculant_verifier.engine import ActiveSequence, Request, StepOutput
from speculant_verifier.model import TargetModel
from speculant_verifier.results import GenerationResult, StepEvent
from speculant_verifier.suitability import unsuited

_REPLACEMENT = "\ufffd"
_TAIL = 8
"""Number of prompt tokens put before a prediction, taken from the prompt's end; longer than any context that drafters
match."""

Prompt = str | Sequence[TokenId]
"""A prompt: text, or token ids that are used unchanged."""


Prompts = list[str] | list[list[TokenId]] | list[Prompt]
"""Several prompts. Only lists of prompts are accepted, because a single Python string is also a sequence of strings."""


def draft_prefix_of(prompt: Sequence[TokenId], prediction: Sequence[TokenId]) -> tuple[TokenId, ...]:
    """Return a prompt's last tokens and the prediction, so that drafters can match from the first output token."""
    return (*prompt[-_TAIL:], *prediction)


class Detokenizer:
    """Decodes a growing token sequence incrementally, up to the first stop text.

    A call decodes only the tokens since the last committed position, with some context before them. The context is
    needed because byte pieces and leading spaces depend on adjacent tokens.
    """

    def __init__(self, decode: Callable[[Sequence[TokenId]], str], stop: Sequence[str] = ()) -> None:
        """Start with an empty token sequence.

        Args:
            decode: converts token ids to text.
            stop: non-empty stop texts; the output ends before the first stop text.
        """
        self._decode = decode
        self._stop = tuple(stop)
        self._token_ids: tuple[TokenId, ...] = ()
        self._num_context = 0  # number of tokens that are context
        self._num_shown = 0  # characters after the context that were already returned
        self._held = ""  # text that may begin a stop text
        self.is_complete = False
        """Whether a stop text was found; if so, no further text is returned."""

    def push(self, token_ids: Sequence[TokenId], *, final: bool = False) -> str:
        """Add tokens; return the text that can no longer change or, if ``final`` is set, all remaining text."""
        if self.is_complete:
            return ""
        text = self._held + self._new_text(token_ids, final=final)
        end = end_of(text, self._stop)
        if end is not None:
            self.is_complete, self._held = True, ""
            return text[:end]
        num_held = 0 if final else self._num_uncertain(text)
        self._held = text[len(text) - num_held :]
        return text[: len(text) - num_held]

    def stop_within(self, token_ids: Sequence[TokenId]) -> int | None:
        """Add tokens; if they complete a stop text, return how many of these tokens belong to the output.

        If one token completes several stop texts, the output ends before the stop text that begins first.
        """
        before = copy(self)
        self.push(token_ids)
        if not self.is_complete:
            return None
        for count, token in enumerate(token_ids, 1):
            before.push([token])
            if before.is_complete:
                return count
        return len(token_ids)  # some decoders clean up spaces, and return less text for single tokens

    def _new_text(self, token_ids: Sequence[TokenId], *, final: bool) -> str:
        if not token_ids and not final:
            return ""  # committing without a token would lose the context that leading spaces depend on
        self._token_ids += tuple(token_ids)
        start = len(self._decode(self._token_ids[: self._num_context])) + self._num_shown
        text = self._decode(self._token_ids)
        # Replacement characters at the end may be the first bytes of a character.
        certain = text if final else text.rstrip(_REPLACEMENT)
        if len(certain) == len(text):
            self._token_ids = self._token_ids[self._num_context :]
            self._num_context, self._num_shown = len(self._token_ids), 0
        else:
            self._num_shown += max(0, len(certain) - start)
        return certain[start:]

    def _num_uncertain(self, text: str) -> int:
        """Return the length of the longest suffix of the text that is a prefix of a stop text."""
        longest = max((len(stop) for stop in self._stop), default=1) - 1
        for size in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-size:]) for stop in self._stop):
                return size
        return 0


def end_of(text: str, stop: Sequence[str]) -> int | None:
    """Return the position of the first stop text; None if the text has no stop text."""
    return min((index for each in stop if (index := text.find(each)) >= 0), default=None)


class Batch:
    """Converts the prompts of one decoding call to requests, and collects their results."""

    def __init__(
        self,
        target: TargetModel,
        prompts: Sequence[Prompt],
        configs: Sequence[GenerationConfig],
        *,
        is_single: bool,
        session: SessionOptions | None = None,
        strategy: StrategyName | None = None,
        shared_length: int = 0,
        documents: Sequence[str] = (),
    ) -> None:
        """Convert prompts to requests for the engine.

        Args:
            target: the model.
            prompts: the prompts.
            configs: the settings of each prompt.
            is_single: whether the caller gave one prompt and expects one result.
            session: options of the drafting sessions, in addition to the drafter's settings.
            strategy: strategy of the drafts; None if it is unknown, or if there are no drafts.
            shared_length: number of tokens at the start of every prompt that later prompts will probably share.
            documents: the document of each prompt, for records; empty if unknown.
        """
        self._target, self._strategy = target, strategy
        self._is_single = is_single
        self._results: dict[int, GenerationResult] = {}
        self._sources: list[tuple[int, int]] = []  # prompt and sample of each request
        self._texts: list[Detokenizer] = []
        self.requests: list[Request] = []
        """The requests for the engine, one for each sample of each prompt."""
        for index, (prompt, config) in enumerate(zip(prompts, configs, strict=True)):
            refusal = grammar = None
            try:
                token_ids = self._token_ids(prompt)
                grammar = target.grammar(config, token_ids)
            except GenerationError as error:
                token_ids, refusal = (), error
            draft_prefix = draft_prefix_of(token_ids, self._token_ids(config.prediction)) if config.prediction else ()
            for sample in range(config.n):
                self._sources.append((index, sample))
                self._texts.append(Detokenizer(target.decode, config.stop))
                settings = config.model_copy(update={"seed": (config.seed + sample) % (1 << 63), "n": 1})
                self.requests.append(
                    Request(
                        len(self.requests),
                        token_ids,
                        settings,
                        stop_check=Detokenizer(target.decode, config.stop).stop_within if config.stop else None,
                        grammar=grammar,
                        draft_prefix=draft_prefix,
                        shared_length=shared_length,
                        refusal=refusal,
                        session=session,
                        document=documents[index] if documents else "",
                    )
                )

    def note(self, output: StepOutput) -> None:
        """Record the result of a sequence if this output finishes it."""
        if output.finish_reason is not None:
            self._results[output.sequence.index] = self._result(output)

    def outcome(self) -> GenerationResult | list[GenerationResult]:
        """Return the value of ``generate``: one result if the caller gave one prompt, otherwise a list.

        Raises:
            GenerationError: the only prompt could not be continued.
        """
        results = [self._results[index] for index in range(len(self.requests))]
        if not self._is_single:
            return results
        _raise_error_of(results[0])
        return results[0]

    def event(self, output: StepOutput) -> StepEvent:
        """Return the stream event for one output of the engine.

        Raises:
            GenerationError: the only prompt could not be continued.
        """
        sequence = output.sequence
        is_last = output.finish_reason is not None
        prompt_index, sample = self._sources[sequence.index]
        text = self._texts[sequence.index]
        visible = _visible(sequence, output.token_ids) if is_last else output.token_ids
        accepted = text.push(visible[: output.num_accepted])
        own = text.push(visible[output.num_accepted :], final=is_last)
        result = self._result(output) if is_last else None
        if self._is_single and result is not None:
            _raise_error_of(result)
        return StepEvent(
            prompt_index=prompt_index,
            sample=sample,
            token_ids=output.token_ids,
            num_accepted=output.num_accepted,
            text=accepted + own,
            accepted_text=accepted,
            logprobs=output.logprobs,
            result=result,
        )

    def _token_ids(self, prompt: Prompt) -> tuple[TokenId, ...]:
        """Return the token ids of a prompt.

        Raises:
            GenerationError: the prompt is neither text nor token ids.
        """
        if not isinstance(prompt, str):
            cause: TypeError | None = None
            try:
                token_ids = [token for token in prompt if not isinstance(token, bool)]
                if len(token_ids) == len(prompt) and not isinstance(prompt, bytes | bytearray):
                    return tuple(operator.index(token) for token in token_ids)
            except TypeError as error:
                cause = error
            raise GenerationRequestError(
                "a {field} is neither a text nor a list of token ids", fix="give one of them", field="prompt"
            ) from cause
        try:
            prompt.encode()
        except UnicodeEncodeError as error:
            raise GenerationRequestError(
                f"a {{field}} is not valid text ({error.reason})", fix="give UTF-8", field="prompt"
            ) from error
        return tuple(self._target.encode(prompt))

    def _result(self, output: StepOutput) -> GenerationResult:
        assert output.finish_reason is not None
        sequence: ActiveSequence = output.sequence
        token_ids = sequence.output
        text = self._target.decode(_visible(sequence, token_ids))
        return GenerationResult(
            text=text[: end_of(text, sequence.request.config.stop)],
            token_ids=token_ids,
            prompt_token_ids=sequence.prompt,
            finish_reason=output.finish_reason,
            num_steps=sequence.num_steps,
            num_steps_without_drafter=sequence.num_steps_without_drafter,
            drafted_by_depth=tuple(sequence.drafted_by_depth),
            accepted_by_depth=tuple(sequence.accepted_by_depth),
            times=sequence.times,
            logprobs=tuple(sequence.logprobs),
            num_drafts=sequence.num_drafts,
            request_id=str(sequence.session_id),
            num_tried=sequence.num_tried,
            rolling_acceptance=sequence.rolling_acceptance,
            num_from_target_cache=sequence.num_from_target_cache,
            num_from_prefix_cache=sequence.num_from_prefix_cache,
            sample=self._sources[sequence.index][1],
            error=sequence.error,
            warning=self._warning(sequence),
        )

    def _warning(self, sequence: ActiveSequence) -> str:
        """Return a warning about the drafts of a sequence; empty if there is none."""
        if not any(sequence.drafted_by_depth):
            return sequence.drafter_problem
        return "" if self._strategy is None else unsuited(sequence.config.rule, self._strategy)


def _visible(sequence: ActiveSequence, token_ids: Sequence[TokenId]) -> Sequence[TokenId]:
    ends = bool(token_ids) and token_ids[-1] in sequence.end_token_ids
    return token_ids[:-1] if ends else token_ids


def _raise_error_of(result: GenerationResult) -> None:
    if result.error is not None:
        raise result.error
