"""Counter-based random numbers: a pure function of (seed, position, stream).

A request that is retried, moved to another batch or decoded with other drafts draws the same numbers, because no
generator state exists that could drift. The mixing function is SplitMix64's finaliser (Steele, Lea and Flood 2014).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15

TARGET_STREAM = 0
"""The verifier's choice of tokens."""
PROPOSAL_STREAM = 1
"""The drafter's choice of proposals: must be independent of the verifier's."""
RULE_STREAM = 2
"""Numbers of verification rules, by the count of those drawn before; never the position's own."""
GUMBEL_STREAM = 3
"""Noise that verifier and drafter share."""


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
    word = _mix((seed + _GOLDEN * (stream + 1)) & _MASK)
    word = _mix(word ^ _mix((position * _GOLDEN + 0xD1B54A32D192ED03) & _MASK))
    return (word >> 11) * 2.0**-53


def gumbel_noise(seed: int, position: int, token_ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return standard Gumbel noise of tokens at a position: a pure function that both halves can repeat.

    The token with the largest sum of log-probability and noise has the distribution of those probabilities.

    Args:
        seed: the request's seed, any integer (taken modulo 2**64).
        position: absolute index in the sequence of the token that the noise decides.
        token_ids: shape ``[s]``.
    """
    word = _mix((seed + _GOLDEN * (GUMBEL_STREAM + 1)) & _MASK)
    word = _mix(word ^ _mix((position * _GOLDEN + 0xD1B54A32D192ED03) & _MASK))
    words = np.uint64(word) ^ (token_ids.astype(np.uint64) * np.uint64(_GOLDEN) + np.uint64(0xBF58476D1CE4E5B9))
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    words ^= words >> np.uint64(31)
    # 52 bits and a half: with 53 the largest number would round to 1 and its noise to infinity.
    uniforms = ((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    noise: NDArray[np.float64] = -np.log(-np.log(uniforms))
    return noise
