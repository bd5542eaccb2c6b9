"""The target's next-token distribution in float64, sampling from it, and the top tokens of many rows.

Sampling takes the argmax of score plus Gumbel noise (Gumbel-max trick), which makes it robust against rounding.
``argmax(log p + noise)`` is a sample from p, and the softmax normaliser does not change the argmax. Sampling by the
inverse cumulative distribution would be less robust: rounding one score would move the borders between many tokens.
With the argmax, rounding matters only if the two largest sums differ by less than the rounding error. The noise depends
on seed, position and token (:func:`~speculant_graph.random_stream.noise_key`), never on the draft.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from speculant_graph import _core
from speculant_graph.random_stream import TOKEN_FACTOR, TOKEN_OFFSET, WORD_FACTORS, noise_key
from speculant_graph.types import TokenId

_BLOCK = 1024
_TOP_BLOCK = 64


@dataclass(frozen=True, slots=True, eq=False)
class Distribution:
    """Probabilities of the tokens that remain after a request's logits processors."""

    token_ids: NDArray[np.int64] | None
    """Token ids that the processors kept, shape ``[s]``, ascending; None for the whole vocabulary."""
    probabilities: NDArray[np.float64]
    """Probabilities of the kept tokens, shape ``[s]``; their sum is 1."""

    @classmethod
    def of_scores(cls, scores: Tensor) -> Self:
        """Return the softmax of scores.

        Args:
            scores: float32 ``[V]`` on any device; no score is NaN or +inf, and at least one is above -inf.
        """
        array: NDArray[np.float32] = scores.cpu().numpy()
        if array.min() > -np.inf:
            return cls(None, torch.softmax(scores.cpu(), -1, dtype=torch.float64).numpy())
        token_ids = np.flatnonzero(array > -np.inf)
        left = array[token_ids].astype(np.float64)
        weights = np.exp(left - left.max())
        return cls(token_ids, weights / weights.sum())

    @classmethod
    def of_token(cls, token_id: TokenId) -> Self:
        """Return the distribution of greedy decoding: one token with probability 1."""
        return cls(np.array([token_id], np.int64), np.ones(1))

    def probabilities_of(self, token_ids: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the probabilities of tokens, shape ``[s]``; 0 for tokens outside the vocabulary."""
        if self.token_ids is None:
            known = np.minimum(token_ids, len(self.probabilities) - 1)
            return np.where(known == token_ids, self.probabilities[known], 0.0)
        indices = self._indices(token_ids)
        return np.where(self.token_ids[indices] == token_ids, self.probabilities[indices], 0.0)

    def draw(self, number: float, token_ids: NDArray[np.int64], weights: NDArray[np.float64], scale: float) -> TokenId:
        """Sample a token by inverting the cumulative weights; a token with weight 0 is never sampled.

        If rounding left no weight above 0, the token is sampled from the distribution itself.

        Args:
            number: random number in [0, 1).
            token_ids: distinct tokens with their own weights, shape ``[s]``.
            weights: weights of ``token_ids``, not negative, shape ``[s]``.
            scale: factor for tokens outside ``token_ids``: their weight is ``scale`` times their probability.
        """
        ids, all_weights = self.token_ids, self.probabilities * scale
        if ids is None:
            is_known = token_ids < len(all_weights)
            all_weights[token_ids[is_known]] = weights[is_known]
        else:
            is_left = np.isin(token_ids, ids)
            all_weights[self._indices(token_ids[is_left])] = weights[is_left]
            if weights[~is_left].any():  # tokens that the processors removed but the caller needs
                ids = np.concatenate((ids, token_ids[~is_left]))
                order = np.argsort(ids)
                ids, all_weights = ids[order], np.concatenate((all_weights, weights[~is_left]))[order]
        if not all_weights.any():
            return self.choose(number)
        index = _inverse_cumulative(all_weights, number)
        return index if ids is None else int(ids[index])

    def choose(self, number: float) -> TokenId:
        """Sample a token, given a random number in [0, 1)."""
        index = _inverse_cumulative(self.probabilities, number)
        return index if self.token_ids is None else int(self.token_ids[index])

    def _indices(self, token_ids: NDArray[np.int64]) -> NDArray[np.intp]:
        assert self.token_ids is not None
        return np.minimum(np.searchsorted(self.token_ids, token_ids), len(self.token_ids) - 1)


def _inverse_cumulative(weights: NDArray[np.float64], number: float) -> int:
    """Return the first index whose cumulative weight exceeds ``number`` times the total; its weight is never 0.

    Blocks are summed first, because a cumulative sum over a whole vocabulary would dominate the time.
    """
    blocks = np.add.reduceat(weights, np.arange(0, len(weights), _BLOCK)).cumsum()
    target = number * blocks[-1]
    block = int(np.searchsorted(blocks, target, side="right"))
    if block == len(blocks):  # rounding left no block above it
        return int(np.flatnonzero(weights)[-1])
    inside = weights[block * _BLOCK : (block + 1) * _BLOCK]
    before = blocks[block - 1] if block else 0.0
    index = int(np.searchsorted(before + inside.cumsum(), target, side="right"))
    return block * _BLOCK + (index if index < len(inside) else int(np.flatnonzero(inside)[-1]))


def top_tokens(logits: Tensor, count: int) -> Tensor:
    """Return the tokens with the largest logits of every row, best first.

    The top tokens of a row are always in the blocks of logits with the largest maxima. One pass over all logits finds
    the blocks with the largest maxima, and the remaining work reads few numbers. Over 201,088 logits on a CPU, this
    method takes a third of the time of ``topk``, about as long as copying the logits.

    Args:
        logits: shape ``[..., V]``, any device and float dtype.
        count: number of tokens, at least 1; at most V are returned.

    Returns:
        Token ids, int64, shape ``[..., min(count, V)]``; the order of ties is undefined.
    """
    count = min(count, logits.shape[-1])
    size = logits.shape[-1] - logits.shape[-1] % _TOP_BLOCK
    if size // _TOP_BLOCK <= count:
        return logits.topk(count).indices
    blocks = logits[..., :size].unflatten(-1, (-1, _TOP_BLOCK))
    begins = blocks.amax(-1).topk(count).indices.unsqueeze(-1) * _TOP_BLOCK
    candidates = (begins + torch.arange(_TOP_BLOCK, device=logits.device)).flatten(-2)
    rest = torch.arange(size, logits.shape[-1], device=logits.device).expand(*candidates.shape[:-1], -1)
    candidates = torch.cat((candidates, rest), -1)
    return candidates.gather(-1, logits.gather(-1, candidates).topk(count).indices)


def top_logprobs(logits: Tensor, count: int) -> NDArray[np.float64]:
    """Return the most probable tokens of every row and their log-probabilities, with one transfer from the device.

    Args:
        logits: shape ``[..., V]``, any float dtype.
        count: number of tokens; at most V are returned.

    Returns:
        The tokens, best first, followed by their log-probabilities, float64, shape ``[..., 2 * min(count, V)]``.
    """
    with torch.no_grad():
        token_ids = top_tokens(logits, count)
        logprobs = logits.gather(-1, token_ids).float() - logits.float().logsumexp(-1, keepdim=True)
        # A logit may be infinite, but JSON has no infinity. Float64 represents every token id and every float32.
        found = torch.cat([token_ids.double(), logprobs.clamp_min(torch.finfo(torch.float32).min).double()], -1)
    values: NDArray[np.float64] = found.cpu().numpy()
    return values


_WORD_BITS = 52
"""Number of bits of a random word that are used for noise. With this number of bits, the noise is below 53 ln 2."""


def gumbel_argmax(scores: NDArray[np.float32], seed: int, position: int) -> tuple[TokenId, float]:
    """Sample a token with the Gumbel-max trick.

    Args:
        scores: shape ``[V]``; -inf for impossible tokens.
        seed: the request's seed.
        position: absolute index of the sampled token in the sequence.

    Returns:
        The sampled token, and its score plus its noise. The sum of score and noise is not finite if a score is NaN or
        +inf, or if all scores are -inf.
    """
    return _core.gumbel_argmax(scores, noise_key(seed, position))


def gumbel_argmaxs(scores: Tensor, seed: int, positions: Sequence[int]) -> list[tuple[TokenId, float]]:
    """Sample a token for each of many nodes, on the device of the scores.

    Args:
        scores: float32 ``[T, V]``, any device.
        seed: the request's seed.
        positions: positions of the ``T`` sampled tokens.

    Returns:
        For every row, the same result as :func:`gumbel_argmax`, except for the last bits of the sum.
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
    """Shift words right as unsigned integers, a type that torch lacks."""
    return (words >> count) & ((1 << (64 - count)) - 1)
