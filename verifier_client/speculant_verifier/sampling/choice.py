"""A draw from scores that rounding hardly moves: the token with the largest sum of score and Gumbel noise.

``argmax(log p + noise)`` is a draw from p, and a softmax's normaliser does not change an argmax. The inverse of a
cumulative distribution has a border between every two neighbours of the vocabulary, and rounding of one score moves
many of them; here it matters only if the two best sums are closer than the rounding. The noise belongs to seed,
position and token (:func:`~speculant_graph.random_stream.gumbel_noise`), never to the draft.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from speculant_graph import _core
from speculant_graph.random_stream import TOKEN_FACTOR, TOKEN_OFFSET, WORD_FACTORS, noise_key
from speculant_graph.types import TokenId

_WORD_BITS = 52
"""Of a word that become noise, which hence is below 53 ln 2."""


def largest_sum(scores: NDArray[np.float32], seed: int, position: int) -> tuple[TokenId, float]:
    """Draw a token.

    Args:
        scores: shape ``[V]``; -inf for tokens that are not possible.
        seed: the request's.
        position: absolute index in the sequence of the token that is drawn.

    Returns:
        The token and its sum, which is not finite where a score is NaN or +inf, or all are -inf.
    """
    return _core.largest_sum(scores, noise_key(seed, position))


def largest_sums(scores: Tensor, seed: int, positions: Sequence[int]) -> list[tuple[TokenId, float]]:
    """Draw a token after each of many nodes, where the scores are.

    Args:
        scores: float32 ``[T, V]``, any device.
        seed: the request's.
        positions: of the tokens that are drawn, ``T`` of them.

    Returns:
        What :func:`largest_sum` returns for every row, up to the last bits of the sum.
    """
    keys = torch.tensor([_signed(noise_key(seed, position)) for position in positions], device=scores.device)
    word = torch.arange(scores.shape[-1], device=scores.device) * _signed(TOKEN_FACTOR) + _signed(TOKEN_OFFSET)
    word = word ^ keys[:, None]
    first, second = map(_signed, WORD_FACTORS)
    word = (word ^ _shifted(word, 30)) * first
    word = (word ^ _shifted(word, 27)) * second
    word = word ^ _shifted(word, 31)
    uniforms = (_shifted(word, 64 - _WORD_BITS).double() + 0.5) * 2.0**-_WORD_BITS
    largest = (scores.double() - (-uniforms.log()).log()).max(-1)
    both = torch.stack((largest.indices.double(), largest.values), -1).tolist()  # one transfer
    return [(int(token), value) for token, value in both]


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


def _shifted(words: Tensor, count: int) -> Tensor:
    """Shift to the right as unsigned numbers are, which torch does not have."""
    return (words >> count) & ((1 << (64 - count)) - 1)
