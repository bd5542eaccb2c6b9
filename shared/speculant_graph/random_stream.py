"""Counter-based random numbers: a pure function of (seed, position, stream).

A request that is retried, moved to another batch or decoded with other drafts draws the same numbers, because no
generator state exists that could drift. The mixing function is SplitMix64's finaliser (Steele, Lea and Flood 2014).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15

TARGET_STREAM = 0
"""The verifier's choice of tokens."""
PROPOSAL_STREAM = 1
"""The drafter's choice of proposals: must be independent of the verifier's."""
NOISE_STREAM = 2
"""Noise on the logarithms of probabilities, which drafter and verifier share."""
RULE_STREAM = 3
"""Numbers of verification rules, by the count of those drawn before; never the position's own."""


def _mix(value: int) -> int:
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def uniform(seed: int, position: int, stream: int) -> float:
    """Return a number in [0, 1) with 53 random bits.

    Args:
        seed: the request's seed, any integer (taken modulo 2**64).
        position: absolute index in the sequence of the token that the number decides.
        stream: what the number is for; streams of one seed are independent.
    """
    return (_word(seed, position, stream) >> 11) * 2.0**-53


def gumbel_noise(seed: int, position: int, token_ids: NDArray[Any]) -> NDArray[np.float64]:
    """Return a number with the standard Gumbel distribution per token, all of them independent.

    The token with the highest sum of log p and its number has the distribution p. A drafter that adds the same numbers
    to its own log q proposes what the verifier will choose, as often as q and p allow (arXiv 2408.07978).

    Args:
        seed: the request's seed, any integer (taken modulo 2**64).
        position: absolute index in the sequence of the token that is chosen.
        token_ids: whole numbers of any type, shape ``[n]``. A token's number depends on seed, position and token alone.

    Returns:
        Finite numbers, shape ``[n]``.
    """
    words = token_ids.astype(np.uint64) * np.uint64(_GOLDEN) + np.uint64(0xD1B54A32D192ED03)
    return _gumbel(_mix_all(words ^ np.uint64(_word(seed, position, NOISE_STREAM))))


def _word(seed: int, position: int, stream: int) -> int:
    word = _mix((seed + _GOLDEN * (stream + 1)) & _MASK)
    return _mix(word ^ _mix((position * _GOLDEN + 0xD1B54A32D192ED03) & _MASK))


def _mix_all(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _gumbel(words: NDArray[np.uint64]) -> NDArray[np.float64]:
    # 52 bits and a half: with 53 bits the highest would round to 1, whose logarithm is 0 and whose noise is infinite.
    uniforms = ((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    return -np.log(-np.log(uniforms))
