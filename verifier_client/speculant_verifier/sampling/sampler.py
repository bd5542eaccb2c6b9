"""Sampling of one request: validated settings, random streams and logits processors.

The logits processors run in the same order as in transformers. All processors except the count penalties are classes of
transformers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from speculant_graph import _core
from speculant_graph.config import GenerationConfig
from speculant_graph.errors import GenerationRequestError
from speculant_graph.random_stream import RULE_STREAM, uniform
from speculant_graph.types import TokenId
from speculant_verifier.structured.constraint import Constraint


class CountPenalties(LogitsProcessor):
    """Lowers the logit of every emitted token by ``presence``, and by ``frequency`` for each time it was emitted.

    The penalties ignore the tokens of the prompt. The penalties are defined as in OpenAI's API reference; transformers
    lacks them.
    """

    def __init__(self, prompt_length: int, presence: float, frequency: float) -> None:
        """Set the penalties, which may be negative, and the length of the prompt."""
        self._prompt_length, self._presence, self._frequency = prompt_length, presence, frequency

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return the scores with penalties applied, ``[n, V]``, for sequences ``[n, L]``."""
        scores = scores.clone()
        for row, emitted in zip(scores, input_ids[:, self._prompt_length :], strict=True):
            tokens, counts = emitted.unique(return_counts=True)
            row[tokens] -= self._presence + self._frequency * counts.to(row.dtype)
        return scores


def processors_of(
    config: GenerationConfig,
    prompt_length: int,
    end_token_ids: Collection[TokenId],
    vocabulary_size: int,
    device: torch.device,
) -> LogitsProcessorList:
    """Return the processors that ``model.generate`` would make for the same settings, in the same order.

    OpenAI's penalties, which transformers lacks, come after the repetition penalty.

    Args:
        config: the request's settings.
        prompt_length: number of tokens in the prompt.
        end_token_ids: tokens that end this request's text (:func:`end_token_ids_of`).
        vocabulary_size: number of the model's logits per position.
        device: device of the logits.

    Raises:
        GenerationError: a setting is invalid for the model's vocabulary, or contradicts another.
    """
    check_settings(config, vocabulary_size)
    processors = LogitsProcessorList()
    if config.logit_bias:
        processors.append(SequenceBiasLogitsProcessor([[[token], bias] for token, bias in config.logit_bias.items()]))
    if config.repetition_penalty != 1.0:
        processors.append(RepetitionPenaltyLogitsProcessor(config.repetition_penalty))
    if config.presence_penalty or config.frequency_penalty:
        processors.append(CountPenalties(prompt_length, config.presence_penalty, config.frequency_penalty))
    if config.min_tokens > 0 and end_token_ids:
        ends = torch.tensor(sorted(end_token_ids), device=device)
        processors.append(MinNewTokensLengthLogitsProcessor(prompt_length, config.min_tokens, ends, device=str(device)))
    if config.temperature > 0.0:
        if config.temperature != 1.0:
            processors.append(TemperatureLogitsWarper(config.temperature))
        if config.top_k > 0:
            processors.append(TopKLogitsWarper(config.top_k))
        if config.top_p < 1.0:
            processors.append(TopPLogitsWarper(config.top_p))
        if config.min_p > 0.0:
            processors.append(MinPLogitsWarper(config.min_p))
    return processors


def end_token_ids_of(config: GenerationConfig, declared: Collection[TokenId]) -> frozenset[TokenId]:
    """Return a request's end tokens: from its settings if they are set, otherwise as declared by the model."""
    return frozenset(declared if config.end_token_ids is None else config.end_token_ids)


def check_settings(config: GenerationConfig, vocabulary_size: int) -> None:
    """Reject settings that are invalid for the model's vocabulary.

    Raises:
        GenerationError: a setting is invalid; the message names it and the fix.
    """
    known = f"0..{vocabulary_size - 1}"
    for token, bias in config.logit_bias.items():
        if not 0 <= token < vocabulary_size:
            raise GenerationRequestError(
                f"{{field}} names token {token}, but the model has {known}",
                fix="use its own tokenizer",
                field="logit_bias",
            )
        if math.isnan(bias) or bias == math.inf:
            raise GenerationRequestError(
                f"{{field}} of token {token} is {bias}",
                fix="give a number, or -inf to forbid the token",
                field="logit_bias",
            )
    for token in config.end_token_ids or ():
        if not 0 <= token < vocabulary_size:
            raise GenerationRequestError(
                f"{{field}} names token {token}, but the model has {known}",
                fix="use its own tokenizer",
                field="end_token_ids",
            )
    if "" in config.stop:
        raise GenerationRequestError(
            "a {field} text has no characters", fix="leave it out, or give at least one character", field="stop"
        )
    if config.min_tokens > config.max_tokens:
        raise GenerationRequestError(
            f"{{field}} {config.min_tokens} is more than max_tokens {config.max_tokens}",
            fix="lower it, or raise max_tokens",
            field="min_tokens",
        )


_CONTEXT_FREE = frozenset((MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper))
"""Logits processors that read only the scores and can therefore process many nodes at once, in any order."""

_TOKENWISE = frozenset(
    (
        CountPenalties,
        MinNewTokensLengthLogitsProcessor,
        RepetitionPenaltyLogitsProcessor,
        SequenceBiasLogitsProcessor,
        TemperatureLogitsWarper,
    )
)
"""Logits processors that change each score independently of all other scores."""


class Sampler:
    """Turns the logits of one request into scores, and provides the random number of every choice."""

    def __init__(
        self, config: GenerationConfig, processors: LogitsProcessorList, constraint: Constraint | None = None
    ) -> None:
        """Create a request's sampler.

        Args:
            config: the request's settings.
            processors: applied to the logits in this order
                (:func:`~speculant_verifier.sampling.sampler.processors_of`, or a caller's own).
            constraint: constraint on the output, if any; it is applied before all processors.
        """
        self.config = config
        self.constraint = constraint
        self.can_choose_first = all(type(each) in _TOKENWISE for each in processors)
        """Whether a token that is chosen without the constraint, and that the constraint allows, is also the token
        chosen with the constraint."""
        self.processors = processors
        self.seed = config.seed
        self.is_greedy = config.temperature == 0.0
        self.is_plain_greedy = self.is_greedy and not processors
        """Whether the chosen token is simply the token with the largest logit."""
        self.needs_prefix = not all(_is_context_free(processor) for processor in processors)
        """Whether scores depend on earlier tokens, so that nodes must be processed sequentially."""
        self._rule_numbers = itertools.count()
        self._prefix = np.empty(256, np.int64)
        self._num_known = 0

    def scores(self, logits: Tensor, prefix_ids: Sequence[TokenId] | Tensor) -> Tensor:
        """Apply the processors.

        Stateful processors see the positions exactly as often, and in the same order, as the caller requests their
        scores.

        Args:
            logits: shape ``[V]``, any float dtype.
            prefix_ids: all tokens before this position, used only if ``needs_prefix`` is True; a tensor must be int64
                ``[L]``.

        Returns:
            Scores, float32 ``[V]``.
        """
        prefix = torch.as_tensor(prefix_ids if self.needs_prefix else (), dtype=torch.int64, device=logits.device)
        return self._processed(logits[None], prefix[None])[0]

    def scores_of_all(self, logits: Tensor) -> Tensor:
        """Apply the processors to many nodes at once, ``[T, V]``; this requires that ``needs_prefix`` is False."""
        return self._processed(logits, torch.empty((len(logits), 0), dtype=torch.int64, device=logits.device))

    def _processed(self, logits: Tensor, prefix: Tensor) -> Tensor:
        scores = logits.to(torch.float32, copy=bool(self.processors))  # processors may write into their input
        for processor in self.processors:
            if type(processor) is MinNewTokensLengthLogitsProcessor and _is_over(processor, prefix):
                continue
            if type(processor) is TopPLogitsWarper and _can_be_quick(processor, scores):
                scores = nucleus(scores[0], processor.top_p)[None]
            else:
                scores = processor(prefix, scores)
        return scores

    def prefix(self, token_ids: Sequence[TokenId], path_ids: Sequence[TokenId]) -> Tensor:
        """Return all tokens before a node as one int64 tensor ``[L]``; no token of the sequence is converted twice.

        Args:
            token_ids: the sequence so far; tokens are only ever appended.
            path_ids: tokens of the draft from the root to the node.
        """
        length = len(token_ids) + len(path_ids)
        if length > len(self._prefix):
            self._prefix = np.concatenate((self._prefix, np.empty(length, np.int64)))
        self._prefix[self._num_known : len(token_ids)] = token_ids[self._num_known :]
        self._num_known = len(token_ids)
        self._prefix[self._num_known : length] = path_ids
        return torch.from_numpy(self._prefix[:length].copy())  # a processor may keep its input

    def next_number(self) -> float:
        """Return the next random number in [0, 1) for the request's verification rule; no number is used twice."""
        return uniform(self.seed, next(self._rule_numbers), RULE_STREAM)


def _is_context_free(processor: LogitsProcessor) -> bool:
    if type(processor) is SequenceBiasLogitsProcessor:
        return all(len(sequence) == 1 for sequence in processor.sequence_bias)
    return type(processor) in _CONTEXT_FREE


def _is_over(processor: MinNewTokensLengthLogitsProcessor, prefix: Tensor) -> bool:
    """Return whether the minimum length is reached; its processor, the slowest of all, can then be skipped."""
    return prefix.shape[-1] - processor.prompt_length_to_skip >= processor.min_new_tokens


def _can_be_quick(processor: TopPLogitsWarper, scores: Tensor) -> bool:
    return (
        scores.device.type == "cpu"
        and len(scores) == 1
        and processor.min_tokens_to_keep == 1
        and processor.filter_value == -float("inf")
        and 0.0 < processor.top_p < 1.0
        and bool(scores.max().isfinite())
    )


def nucleus(scores: Tensor, top_p: float) -> Tensor:
    """Apply a top-p filter without a full sort: return the scores, with -inf for tokens outside the nucleus.

    Sorting all 200,000 scores of a large vocabulary would dominate the time. The probabilities are summed in buckets of
    similar values, and only the bucket at the border of the nucleus is sorted.

    The result equals ``TopPLogitsWarper(top_p)``, except for tokens with a cumulative probability within about 1e-6 of
    the border (softmax rounding). If scores at the border are equal, the larger token ids are kept. For equal scores,
    transformers keeps the same number of tokens, but does not define which ones.

    Args:
        scores: float32 ``[V]`` on the CPU; no score is NaN, and at least one is above -inf.
        top_p: in (0, 1).
    """
    probabilities = torch.softmax(scores, -1).numpy()
    array: NDArray[np.float32] = scores.numpy()
    most_removed = np.float32(1 - top_p)
    kept = np.empty_like(array)
    border, mass = _core.top_p_filter(array, probabilities, float(most_removed), kept)
    border = border[np.argsort(array[border], kind="stable")]
    cumulative = (mass + np.cumsum(probabilities[border], dtype=np.float64)).astype(np.float32)
    border = border[cumulative > most_removed]
    kept[border] = array[border]
    if not len(border) and kept.max() == -np.inf:  # at least one token stays
        last_of_largest = np.flatnonzero(array == array.max())[-1]
        kept[last_of_largest] = array[last_of_largest]
    return torch.from_numpy(kept)
