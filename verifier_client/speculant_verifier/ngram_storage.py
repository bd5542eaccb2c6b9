"""N-gram storages of NASD (n-gram assisted speculative decoding) as its users call them: tensors in, tensors out.

:func:`~speculant_verifier.ngram_assisted.ngram_assisted_speculative_generate` drafts from them. The counting is
done by :class:`~speculant_graph.draft.papers.ngram_counts.NGramCounts`, which the strategy ``nasd`` uses without torch.

Descriptions of NASD contradict each other by one here and there. These storages follow its tables and examples:

- An n-gram is a context of n - 1 tokens and its successor, so n = 2 looks at one token. :class:`NGramStorage` holds the
  orders 2 to n, and ``counts[order]`` those of order - 1 tokens of context. (Loops that end at contexts of two tokens
  would leave nothing for n = 2.)
- ``update`` learns from a context of exactly n - 1 tokens, as ``initialize`` does and ``next_token`` looks up. (Asking
  for n tokens would lose the first one after a prompt of n - 1.)
- The context is always the *last* tokens, and the answers of ``next_token`` are ``[batch, 1]``.
- A successor becomes the top token when its count exceeds that of the top token, not when it equals it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TypeVar

import torch
from torch import Tensor

from speculant_graph.draft.papers.ngram_counts import DEFAULT_MAX_CONTEXTS, Context, NGramCounts
from speculant_graph.errors import ConfigError, DraftRequestError
from speculant_graph.types import TokenId

_Value = TypeVar("_Value")


class INgramStorage(ABC):
    """What n-gram assisted decoding drafts from: contexts and the tokens that followed them.

    Implement it for a storage of your own.
    """

    def __init__(self, n: int, vocab_size: int) -> None:
        """Keep the sizes.

        Args:
            n: tokens of the longest n-gram, one more than its context.
            vocab_size: tokens of the model.

        Raises:
            ConfigError: n is below 2.
        """
        if n < 2:
            raise ConfigError(f"n of an n-gram storage is {n}; give at least 2")
        self.n = n
        self.vocab_size = vocab_size

    @abstractmethod
    def next_token(self, input_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Predict the next token of every sequence.

        Args:
            input_ids: sequences, integers ``[batch, length]``.

        Returns:
            The tokens, int64 ``[batch, 1]``, and whether each context was known, bool ``[batch, 1]``. Tokens of unknown
            contexts are random.
        """

    @abstractmethod
    def update(self, input_ids: Tensor, next_tokens: Tensor) -> None:
        """Count each of a row's next tokens once as a successor of the row's context.

        Args:
            input_ids: contexts, integers ``[batch, length]``.
            next_tokens: alternatives for the token that follows, such as the indices of a top-k, ``[batch, k]``.
        """

    @abstractmethod
    def initialize(self, input_ids: Tensor) -> None:
        """Learn every n-gram of the sequences; what was learned before stays.

        Args:
            input_ids: sequences, integers ``[batch, length]``.
        """


class _CountingStorage(INgramStorage):
    """Dictionaries over tensors of any integer type on any device; answers are on the device of the question.

    Padding is not supported: every token of a row belongs to its sequence. All methods raise ``DraftRequestError`` for
    tensors of another shape or type, before anything is learned.
    """

    def __init__(self, n: int, vocab_size: int, max_contexts: int = DEFAULT_MAX_CONTEXTS) -> None:
        """Make an empty storage.

        Args:
            n: tokens of the longest n-gram, one more than its context.
            vocab_size: tokens of the model; random tokens, where nothing is known, are below it.
            max_contexts: most contexts stored, about 450 bytes each; beyond it those go that were learned from the
                longest time ago.

        Raises:
            ConfigError: a number is too small.
        """
        super().__init__(n, vocab_size)
        self._counts = NGramCounts(n, vocab_size, shortest_context=self._shortest_context(), max_contexts=max_contexts)

    @abstractmethod
    def _shortest_context(self) -> int:
        """Return the length of the shortest context that is stored; the longest has n - 1 tokens."""

    def next_token(self, input_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Predict by :class:`INgramStorage`; a random token depends on the length of the sequence alone."""
        found = [self._counts.successor(end) for end in _rows("input_ids", input_ids, self.n - 1)]
        unknown = self._counts.random_token(input_ids.shape[1])
        token_ids = [unknown if token_id is None else token_id for token_id in found]
        known = [token_id is not None for token_id in found]
        return (
            torch.tensor(token_ids, dtype=torch.int64, device=input_ids.device).reshape(-1, 1),
            torch.tensor(known, dtype=torch.bool, device=input_ids.device).reshape(-1, 1),
        )

    def update(self, input_ids: Tensor, next_tokens: Tensor) -> None:
        """Learn successors by :class:`INgramStorage`."""
        contexts, rows = _rows("input_ids", input_ids, self.n - 1), _rows("next_tokens", next_tokens)
        if len(contexts) != len(rows):
            raise DraftRequestError(
                f"{len(contexts)} contexts came with {len(rows)} rows of next tokens; give one row per context"
            )
        for context, token_ids in zip(contexts, rows, strict=True):
            self._counts.count(context, token_ids)

    def initialize(self, input_ids: Tensor) -> None:
        """Learn sequences by :class:`INgramStorage`."""
        for token_ids in _rows("input_ids", input_ids):
            self._counts.learn(token_ids)


class OneLevelNGramStorage(_CountingStorage):
    """N-grams of n tokens alone: nothing is known of shorter contexts."""

    def _shortest_context(self) -> int:
        return self.n - 1

    @property
    def counts(self) -> dict[Context, dict[TokenId, int]]:
        """How often each token followed each context of n - 1 tokens."""
        return self._counts.counts

    @property
    def ngrams(self) -> dict[Context, TokenId]:
        """The top token after each context: the one with the highest count."""
        return self._counts.most_frequent


class NGramStorage(_CountingStorage):
    """N-grams of 2 to n tokens: the longest known context of n - 1, n - 2, ... 1 tokens decides."""

    def _shortest_context(self) -> int:
        return 1

    @property
    def counts(self) -> dict[int, dict[Context, dict[TokenId, int]]]:
        """By order, how often each token followed each context; collected anew at every access."""
        return self._by_order(self._counts.counts)

    @property
    def ngrams(self) -> dict[int, dict[Context, TokenId]]:
        """By order, the top token after each context; collected anew at every access."""
        return self._by_order(self._counts.most_frequent)

    def _by_order(self, table: Mapping[Context, _Value]) -> dict[int, dict[Context, _Value]]:
        orders: dict[int, dict[Context, _Value]] = {order: {} for order in range(2, self.n + 1)}
        for context, value in table.items():
            orders[len(context) + 1][context] = value
        return orders


def _rows(name: str, tensor: Tensor, num_tokens: int | None = None) -> list[list[int]]:
    """Return the last tokens of every row, or all of them."""
    is_integer = not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)
    if tensor.ndim != 2 or not is_integer:
        shape = list(tensor.shape)
        raise DraftRequestError(f"{name} is {tensor.dtype} {shape}; give token ids as integers [batch, length]")
    rows: list[list[int]] = (tensor if num_tokens is None else tensor[:, -num_tokens:]).tolist()
    return rows
