"""N-gram storages and a decoding loop of NASD (n-gram assisted speculative decoding), named as in the paper.

The loop decodes one sequence, for study or comparison. With the strategies ``adaptive`` and ``tree``,
:class:`~speculant_verifier.decoder.SpeculativeDecoder` also drafts from the sequence itself.

In published descriptions of NASD, the lengths of some contexts differ by one token. These storages follow the paper's
tables and examples:

- An n-gram is a context of n - 1 tokens and its successor, so with n = 2 the context is one token.
  :class:`NGramStorage` has tables for the orders 2 to n; contexts in ``counts[order]`` have order - 1 tokens. (If the
  shortest contexts had two tokens, there would be no table for n = 2.)
- ``update`` learns contexts of n - 1 tokens, the length that ``initialize`` and ``next_token`` use. (With contexts of n
  tokens, ``update`` would not learn the first token after a prompt of n - 1 tokens.)
- The context is always the *last* tokens of a sequence. ``next_token`` returns tensors of shape ``[batch, 1]``.
- A token replaces a context's most frequent successor only when its count is higher; if both counts are equal, the
  earlier successor stays.
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from speculant_graph.errors import ConfigError, DraftRequestError, GenerationRequestError
from speculant_graph.random_stream import PROPOSAL_STREAM, uniform
from speculant_graph.types import TokenId
from speculant_verifier.nasd.nasd_drafter import DEFAULT_MAX_CONTEXTS, NGramCounts


class INgramStorage(ABC):
    """Interface of n-gram storages, which store contexts and the tokens that followed them.

    A custom storage is a subclass of this interface.
    """

    def __init__(self, n: int, vocab_size: int) -> None:
        """Check and store ``n`` and ``vocab_size``.

        Args:
            n: number of tokens of the longest n-gram: its context and one successor.
            vocab_size: size of the model's vocabulary.

        Raises:
            ConfigError: ``n`` is not an integer of at least 2, or ``vocab_size`` is not an integer of at least 1.
        """
        self.n = _at_least(2, "n", n)
        self.vocab_size = _at_least(1, "vocab_size", vocab_size)

    @abstractmethod
    def next_token(self, input_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Predict the next token of every sequence.

        Args:
            input_ids: sequences, integers ``[batch, length]``.

        Returns:
            The predicted tokens, int64 ``[batch, 1]``, and whether each context was known, bool ``[batch, 1]``. After
            an unknown context, the predicted token is random.
        """

    @abstractmethod
    def update(self, input_ids: Tensor, next_tokens: Tensor) -> None:
        """For each row, count each alternative for its next token once as a successor of the row's context.

        Args:
            input_ids: contexts, integers ``[batch, length]``.
            next_tokens: alternatives for the next token, such as top-k indices, ``[batch, k]``.
        """

    @abstractmethod
    def initialize(self, input_ids: Tensor) -> None:
        """Learn every n-gram of the sequences, in addition to all earlier n-grams.

        Args:
            input_ids: sequences, integers ``[batch, length]``.
        """


class NGramStorage(INgramStorage):
    """N-grams of 2 to n tokens with back-off: the longest known context of n - 1, n - 2, ... 1 tokens is used.

    The n-grams are stored in dictionaries. Inputs are tensors of any integer dtype on any device; results are on the
    same device. Padding is not supported: every token of a row belongs to its sequence. All methods raise
    ``DraftRequestError`` for inputs that are not tensors, have a wrong shape or dtype, or contain tokens outside the
    vocabulary. Every method checks its inputs before it learns anything.
    """

    _keeps_shorter_contexts: ClassVar[bool] = True

    def __init__(self, n: int, vocab_size: int, max_contexts: int = DEFAULT_MAX_CONTEXTS) -> None:
        """Create an empty storage.

        Args:
            n: number of tokens of the longest n-gram: its context and one successor.
            vocab_size: size of the model's vocabulary, from which tokens after unknown contexts are drawn at random.
            max_contexts: maximum number of stored contexts, about 450 bytes each; beyond it, the n-gram order with the
                most contexts loses its least recently learned contexts.

        Raises:
            ConfigError: n is not an integer of at least 2, or another argument is not an integer of at least 1.
        """
        super().__init__(n, vocab_size)
        most, shortest = _at_least(1, "max_contexts", max_contexts), 1 if self._keeps_shorter_contexts else self.n - 1
        self._table = NGramCounts(self.n, shortest_context=shortest, max_contexts=most)

    @property
    def counts(self) -> Mapping[Any, Any]:
        """Counts of each context's successors, by n-gram order; the storage's own tables, not a copy."""
        return self._table.counts

    @property
    def ngrams(self) -> Mapping[Any, Any]:
        """The most frequent successor of each context, by n-gram order; the storage's own tables, not a copy."""
        return self._table.most_frequent

    def next_token(self, input_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Predict the next tokens; see :class:`INgramStorage`.

        The random token after an unknown context depends only on the sequence length.
        """
        found = [self._table.successor(end) for end in self._rows("input_ids", input_ids, self.n - 1)]
        unknown = int(uniform(0, input_ids.shape[1], PROPOSAL_STREAM) * self.vocab_size)
        token_ids = [unknown if token_id is None else token_id for token_id in found]
        known = [token_id is not None for token_id in found]
        return (
            torch.tensor(token_ids, dtype=torch.int64, device=input_ids.device).reshape(-1, 1),
            torch.tensor(known, dtype=torch.bool, device=input_ids.device).reshape(-1, 1),
        )

    def update(self, input_ids: Tensor, next_tokens: Tensor) -> None:
        """Learn successors of contexts; see :class:`INgramStorage`."""
        contexts, rows = self._rows("input_ids", input_ids, self.n - 1), self._rows("next_tokens", next_tokens)
        if len(contexts) != len(rows):
            raise DraftRequestError(
                f"{len(contexts)} contexts came with {len(rows)} rows of next tokens; give one row per context"
            )
        for context, token_ids in zip(contexts, rows, strict=True):
            self._table.count(context, token_ids)

    def initialize(self, input_ids: Tensor) -> None:
        """Learn the n-grams of sequences; see :class:`INgramStorage`."""
        for token_ids in self._rows("input_ids", input_ids):
            self._table.learn(token_ids)

    def _rows(self, name: str, tensor: Tensor, num_tokens: int | None = None) -> list[list[int]]:
        """Return the last ``num_tokens`` tokens of every row, or all its tokens if ``num_tokens`` is None."""
        if not isinstance(tensor, Tensor):
            problem = f"{name} is not a tensor but {type(tensor).__name__}"
        elif tensor.ndim != 2 or tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
            problem = f"{name} is {tensor.dtype} {list(tensor.shape)}"
        else:
            tensor = tensor if num_tokens is None else tensor[:, -num_tokens:]
            rows: list[list[int]] = tensor.tolist()
            wrong = next((token for row in rows for token in row if not 0 <= token < self.vocab_size), None)
            if wrong is None:
                return rows
            raise DraftRequestError(
                f"{name} contains the token {wrong}", fix=f"give tokens from 0 to {self.vocab_size - 1}", field=name
            )
        raise DraftRequestError(problem, fix="give token ids as a tensor of integers [batch, length]", field=name)


class OneLevelNGramStorage(NGramStorage):
    """One table of n-grams of exactly n tokens; there is no back-off to shorter contexts."""

    _keeps_shorter_contexts = False

    @property
    def counts(self) -> Mapping[Any, Any]:
        """Counts of each context's successors, for contexts of n - 1 tokens."""
        return self._table.counts[self.n]

    @property
    def ngrams(self) -> Mapping[Any, Any]:
        """The most frequent successor of each context of n - 1 tokens."""
        return self._table.most_frequent[self.n]


def _at_least(least: int, name: str, value: object) -> int:
    """Check that a value is an integer of at least ``least``, and return it."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ConfigError(f"{name} is {value!r}", fix=f"give a whole number of at least {least}", field=name)
    return int(value)


class GreedyProcessor:
    """Chooses the most probable token."""

    def __init__(self, temperature: float = 1.0) -> None:
        """Set the temperature, which changes the probabilities but not the most probable token.

        Raises:
            ConfigError: the temperature is not a positive number.
        """
        is_number = isinstance(temperature, Real) and not isinstance(temperature, bool)
        if not (is_number and 0.0 < temperature < math.inf):
            fix = "give a positive number" + (", or use GreedyProcessor" if type(self) is not GreedyProcessor else "")
            raise ConfigError(f"temperature is {temperature!r}", fix=fix, field="temperature")
        self.temperature = temperature

    def __call__(self, logits: Tensor) -> Tensor:
        """Return the softmax of logits ``[..., vocabulary]`` as float32."""
        return torch.softmax(logits.float() / self.temperature, dim=-1)

    def sample(self, probs: Tensor) -> Tensor:
        """Return the most probable token of each row, ``[..., 1]``."""
        return probs.argmax(dim=-1, keepdim=True)


class MultinomialProcessor(GreedyProcessor):
    """Samples a token from the probabilities, with torch's random state."""

    def sample(self, probs: Tensor) -> Tensor:
        """Sample one token for each row of ``[rows, vocabulary]``; return them as ``[rows, 1]``."""
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
    logits_processor: GreedyProcessor = _GREEDY,
    max_gen_len: int = 40,
    eos_tokens_id: int | list[int] = 1,
    pad_token_id: int = 0,
    use_cache: bool = False,
    first_target: bool = True,
    stop_if_unknown: bool = False,
    debug: bool = False,
) -> tuple[list[TokenId], float]:
    """Decode one sequence, with drafts from n-grams of the sequence itself.

    Decoding is lossless: with a greedy processor the tokens equal the target's, and with a sampling processor they have
    the target's distribution. The target samples one token at every position, given the exact prefix. A drafted token
    is accepted if it equals the target's token; after a mismatch, the target's token is emitted. (Most published
    versions of NASD sample again after a mismatch. Sampling again favours drafted tokens: a drafted token of target
    probability p is emitted with probability ``p + (1 - p) p``.)

    The storage learns the prompt, then every emitted token and the target's most probable tokens at the same position.
    A storage that is passed to another call keeps the n-grams that it has learned.

    Args:
        inputs: the prompt's token ids.
        ngramstorage: the storage for drafts: :class:`NGramStorage` or a custom one.
        target: a causal model in evaluation mode.
        tokenizer: tokenizer that converts tokens to text for ``debug``; not used otherwise.
        gamma: maximum number of drafted tokens per pass.
        filler_top_k: number of the target's most probable tokens learned at every position; with 1 or less, only
            emitted tokens are learned.
        logits_processor: object that chooses the target's token: a :class:`GreedyProcessor`, a
            :class:`MultinomialProcessor`, or an object with the same two methods.
        max_gen_len: maximum number of tokens to generate; generation also ends where the target's context ends.
        eos_tokens_id: the end token or end tokens.
        pad_token_id: token that fills the unused part of the buffer; it is never read.
        use_cache: keep a KV cache between passes, which requires that all layers are attention layers; otherwise each
            pass recomputes the whole sequence.
        first_target: run the first pass without a draft, and learn only the token that this pass emits, not the
            target's other top tokens.
        stop_if_unknown: end a draft at an unknown context; otherwise the storage drafts a random token.
        debug: write the drafted and accepted tokens of every pass to standard error.

    Returns:
        The generated tokens, including an end token, and the ratio of accepted to drafted tokens (0 if no token was
        drafted).

    Raises:
        GenerationRequestError: the prompt is empty, too long for the target, or has tokens outside its vocabulary.
        ConfigError: the storage's vocabulary is smaller than the target's.
    """
    config = target.config.get_text_config()
    vocabulary_size: int = config.vocab_size
    if getattr(ngramstorage, "vocab_size", vocabulary_size) < vocabulary_size:
        raise ConfigError(
            f"the storage is for {ngramstorage.vocab_size} tokens and the model has {vocabulary_size}",
            fix=f"make it with vocab_size={vocabulary_size}",
            field="vocab_size",
        )
    try:
        prompt = list(map(int, inputs))
    except (TypeError, ValueError) as error:
        raise GenerationRequestError(
            "inputs are not a list of token ids", fix="give whole numbers", field="inputs"
        ) from error
    if not prompt or not 0 <= min(prompt) <= max(prompt) < vocabulary_size:
        raise GenerationRequestError(
            f"the {{field}} is empty, or has tokens outside the model's {vocabulary_size}",
            fix="use its own tokenizer",
            field="prompt",
        )
    max_length = getattr(config, "max_position_embeddings", sys.maxsize)
    if len(prompt) >= max_length:
        raise GenerationRequestError(
            f"the {{field}} has {len(prompt)} tokens and the model {max_length} positions",
            fix="shorten it",
            field="prompt",
        )
    length = min(max_length, len(prompt) + max(0, max_gen_len))
    input_ids = torch.full((1, length), pad_token_id)
    input_ids[0, : len(prompt)] = torch.tensor(prompt)
    end_tokens = {eos_tokens_id} if isinstance(eos_tokens_id, int) else set(eos_tokens_id)
    cache = DynamicCache() if use_cache else None  # without a config it has no sliding windows, so it can roll back
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


def _draft(
    storage: INgramStorage, input_ids: Tensor, position: int, size: int, vocabulary_size: int, stop_if_unknown: bool
) -> list[TokenId]:
    """Draft at most ``size`` tokens from ``position`` on, and write them into ``input_ids``."""
    draft: list[TokenId] = []
    for end in range(position, position + size):
        tokens, known = storage.next_token(input_ids[:, :end])
        token = int(tokens.reshape(-1)[0])
        if not (0 <= token < vocabulary_size and (known.reshape(-1)[0] or not stop_if_unknown)):
            break
        input_ids[0, end] = token
        draft.append(token)
    return draft
