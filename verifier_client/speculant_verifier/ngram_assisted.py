"""NASD, n-gram assisted speculative decoding, as one function over a model of transformers and an n-gram storage.

A loop for one sequence, to study or to compare with; :class:`~speculant_verifier.decoder.SpeculativeDecoder` with the
strategy ``nasd`` does the same in batches.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from speculant_graph.errors import ConfigError, GenerationRequestError
from speculant_graph.types import TokenId
from speculant_verifier.ngram_storage import INgramStorage


class LogitsProcessor(Protocol):
    """How a token is chosen from logits."""

    def __call__(self, logits: Tensor, /) -> Tensor:
        """Return the probabilities of logits ``[rows, vocabulary]``, in the same shape."""

    def sample(self, probs: Tensor, /) -> Tensor:
        """Return one token for each row of probabilities, ``[rows, 1]``."""


class GreedyProcessor:
    """The most probable token."""

    def __init__(self, temperature: float = 1.0) -> None:
        """Divide logits by a temperature, which changes the probabilities but not the most probable token.

        Raises:
            ConfigError: the temperature is not positive.
        """
        if temperature <= 0.0:
            raise ConfigError(f"temperature is {temperature}; give a positive one, or use GreedyProcessor")
        self.temperature = temperature

    def __call__(self, logits: Tensor) -> Tensor:
        """Return the softmax of logits ``[..., vocabulary]`` as float32."""
        return torch.softmax(logits.float() / self.temperature, dim=-1)

    def sample(self, probs: Tensor) -> Tensor:
        """Return the most probable token of each row, ``[..., 1]``."""
        return probs.argmax(dim=-1, keepdim=True)


class MultinomialProcessor(GreedyProcessor):
    """A token drawn from the probabilities, by torch's random state."""

    def sample(self, probs: Tensor) -> Tensor:
        """Return a token drawn for each row of ``[rows, vocabulary]``, ``[rows, 1]``."""
        return torch.multinomial(probs, num_samples=1)


_GREEDY = GreedyProcessor()


@torch.no_grad()
def ngram_assisted_speculative_generate(
    inputs: Sequence[TokenId],
    ngramstorage: INgramStorage,
    target: PreTrainedModel,
    tokenizer: Any = None,
    gamma: int = 5,
    filler_top_k: int = 3,
    logits_processor: LogitsProcessor = _GREEDY,
    max_gen_len: int = 40,
    eos_tokens_id: int | list[int] = 1,
    pad_token_id: int = 0,
    use_cache: bool = False,
    first_target: bool = True,
    stop_if_unknown: bool = False,
    debug: bool = False,
) -> tuple[list[TokenId], float]:
    """Decode one sequence, drafting from n-grams of the sequence itself.

    What comes out is what the target alone would have written: with a greedy processor the same tokens, with a sampling
    one the same distribution. The target draws one token at every position, at its exact prefix; a drafted token is
    accepted if it is that one. After a mismatch the token already drawn goes out. (NASD as it is usually written draws
    again there, which favours drafted tokens: one of probability p comes with ``p + (1 - p) p``.)

    The storage learns the prompt, then every token that goes out, then the target's most probable ones at its position.
    Keep it for the next call, and it goes on learning.

    Args:
        inputs: the prompt's token ids.
        ngramstorage: what to draft from; :class:`~speculant_verifier.ngram_storage.NGramStorage` or one of your own.
        target: a causal model in evaluation mode.
        tokenizer: shows tokens as text with ``debug``; not used otherwise.
        gamma: most tokens drafted for a pass.
        filler_top_k: how many of the target's most probable tokens are learned at every position; 1 or less learns what
            goes out alone.
        logits_processor: how the target's token is chosen.
        max_gen_len: most tokens generated; fewer where the target's positions end.
        eos_tokens_id: the token, or tokens, after which to stop.
        pad_token_id: fills the buffer behind the sequence; nothing reads it.
        use_cache: keep keys and values between passes, which only models whose layers are all attention can; otherwise
            each pass computes the whole sequence.
        first_target: draft nothing for the first pass, whose token is learned without the target's other probable ones.
        stop_if_unknown: end a draft at an unknown context; otherwise the storage's random token stands there.
        debug: write what every pass drafted and accepted to standard error.

    Returns:
        The generated tokens, with the end token if there was one, and accepted by drafted tokens, 0 if none was
        drafted.

    Raises:
        GenerationRequestError: the prompt is empty, too long for the target, or holds tokens it does not have.
    """
    config = target.config.get_text_config()
    vocabulary_size: int = config.vocab_size
    prompt = _checked_prompt(inputs, vocabulary_size)
    max_length = getattr(config, "max_position_embeddings", sys.maxsize)
    if len(prompt) >= max_length:
        raise GenerationRequestError(
            f"the prompt has {len(prompt)} tokens and the model {max_length} positions; shorten the prompt"
        )
    length = min(max_length, len(prompt) + max(0, max_gen_len))
    input_ids = torch.full((1, length), pad_token_id)
    input_ids[0, : len(prompt)] = torch.tensor(prompt)
    end_tokens = {eos_tokens_id} if isinstance(eos_tokens_id, int) else set(eos_tokens_id)
    cache = DynamicCache() if use_cache else None  # made without a config it has no windows, so any layer can go back
    position, num_cached, num_drafted, num_accepted = len(prompt), 0, 0, 0
    ngramstorage.initialize(input_ids[:, :position])
    while position < length:
        is_first_target = first_target and position == len(prompt)
        size = 0 if is_first_target else min(gamma, length - position - 1)
        draft = _draft(ngramstorage, input_ids, position, size, vocabulary_size, stop_if_unknown)
        end = position + len(draft)
        outputs = target(
            input_ids=input_ids[:, num_cached:end].to(target.device), past_key_values=cache, use_cache=use_cache
        )
        before = num_accepted
        for logits, drafted in zip(outputs.logits[0, -len(draft) - 1 :], [*draft, None], strict=True):
            probs = logits_processor(logits[None])
            token = int(logits_processor.sample(probs).reshape(-1)[0])
            ngramstorage.update(input_ids[:, :position], torch.tensor([[token]]))
            if filler_top_k > 1 and not is_first_target:
                top = probs.topk(min(filler_top_k, vocabulary_size)).indices
                ngramstorage.update(input_ids[:, :position], top.cpu())
            input_ids[0, position] = token
            position += 1
            num_accepted += token == drafted
            if token != drafted or token in end_tokens:
                break
        num_drafted += len(draft)
        if debug:
            show = str if tokenizer is None else lambda token_ids: repr(tokenizer.decode(token_ids))
            sys.stderr.write(f"drafted {show(draft)}, accepted {num_accepted - before}, then {show([token])}\n")
        if token in end_tokens:
            break
        if cache is not None:
            num_cached = position - 1
            if end > num_cached:
                cache.crop(num_cached - end)
    return input_ids[0, len(prompt) : position].tolist(), num_accepted / num_drafted if num_drafted else 0.0


def _checked_prompt(inputs: Sequence[TokenId], vocabulary_size: int) -> list[TokenId]:
    prompt = list(map(int, inputs))
    if not prompt:
        raise GenerationRequestError("the prompt is empty; give at least one token")
    if not 0 <= min(prompt) <= max(prompt) < vocabulary_size:
        raise GenerationRequestError(
            f"the prompt has tokens outside of the model's {vocabulary_size}; use the model's own tokenizer"
        )
    return prompt


def _draft(
    storage: INgramStorage, input_ids: Tensor, position: int, size: int, vocabulary_size: int, stop_if_unknown: bool
) -> list[TokenId]:
    """Return at most ``size`` tokens for ``position`` and behind it, and leave them there in ``input_ids``."""
    draft: list[TokenId] = []
    for end in range(position, position + size):
        tokens, known = storage.next_token(input_ids[:, :end])
        token = int(tokens.reshape(-1)[0])
        if not (0 <= token < vocabulary_size and (known.reshape(-1)[0] or not stop_if_unknown)):
            break
        input_ids[0, end] = token
        draft.append(token)
    return draft
