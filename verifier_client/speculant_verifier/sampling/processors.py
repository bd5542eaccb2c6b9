"""A request's settings as transformers' own logits processors, in transformers' order, checked beforehand."""

from __future__ import annotations

import math
from collections.abc import Collection

import torch
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

from speculant_graph.config import GenerationConfig
from speculant_graph.errors import GenerationRequestError
from speculant_graph.types import TokenId


class CountPenalties(LogitsProcessor):
    """Takes from the logits of emitted tokens: ``presence`` once, and ``frequency`` as often as each was emitted.

    Tokens of the prompt do not count. As in OpenAI's API reference; transformers does not have them.
    """

    def __init__(self, prompt_length: int, presence: float, frequency: float) -> None:
        """Take the penalties, which may be negative, and how many tokens the prompt has."""
        self._prompt_length, self._presence, self._frequency = prompt_length, presence, frequency

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return new scores ``[n, V]`` after sequences ``[n, L]``."""
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

    OpenAI's penalties, which it does not have, come after its own.

    Args:
        config: the request's settings.
        prompt_length: tokens of the prompt.
        end_token_ids: tokens that end this request's text (:func:`end_token_ids_of`).
        vocabulary_size: of the model, that is of its logits.
        device: where the logits are.

    Raises:
        GenerationError: a setting does not fit the model's vocabulary, or contradicts another.
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
        processors.extend(_warpers(config))
    return processors


def _warpers(config: GenerationConfig) -> LogitsProcessorList:
    warpers = LogitsProcessorList()
    if config.temperature != 1.0:
        warpers.append(TemperatureLogitsWarper(config.temperature))
    if config.top_k > 0:
        warpers.append(TopKLogitsWarper(config.top_k))
    if config.top_p < 1.0:
        warpers.append(TopPLogitsWarper(config.top_p))
    if config.min_p > 0.0:
        warpers.append(MinPLogitsWarper(config.min_p))
    return warpers


def end_token_ids_of(config: GenerationConfig, declared: Collection[TokenId]) -> frozenset[TokenId]:
    """Return the tokens that end a request's text: its own, or those that the model declares."""
    return frozenset(declared if config.end_token_ids is None else config.end_token_ids)


def check_settings(config: GenerationConfig, vocabulary_size: int) -> None:
    """Refuse settings that a model of this vocabulary can't follow.

    Raises:
        GenerationError: which one, and what to give instead.
    """
    known = f"0..{vocabulary_size - 1}"
    for token, bias in config.logit_bias.items():
        if not 0 <= token < vocabulary_size:
            raise GenerationRequestError(
                f"logit_bias names token {token}, the model has {known}; use its own tokenizer"
            )
        if math.isnan(bias) or bias == math.inf:
            raise GenerationRequestError(
                f"logit_bias of token {token} is {bias}; give a number, or -inf to forbid the token"
            )
    for token in config.end_token_ids or ():
        if not 0 <= token < vocabulary_size:
            raise GenerationRequestError(
                f"end_token_ids names token {token}, the model has {known}; use its own tokenizer"
            )
    if "" in config.stop:
        raise GenerationRequestError("a stop text has no characters; leave it out, or give at least one character")
    if config.min_tokens > config.max_tokens:
        raise GenerationRequestError(
            f"min_tokens {config.min_tokens} is more than max_tokens {config.max_tokens}; lower it, or raise max_tokens"
        )
