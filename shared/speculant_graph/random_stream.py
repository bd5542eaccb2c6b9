"""Counter-based random numbers: a pure function of (seed, position, stream).

A request that is retried, moved to another batch or decoded with other drafts draws the same numbers, because there is
no generator state. The mixing function is SplitMix64's finaliser (Steele, Lea and Flood 2014).
"""

from __future__ import annotations

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST_FACTOR, _SECOND_FACTOR = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB

WORD_FACTORS = _FIRST_FACTOR, _SECOND_FACTOR
"""Factors of the finaliser, which shifts by 30, 27 and 31 bits."""
TOKEN_FACTOR, TOKEN_OFFSET = _FIRST_FACTOR, _GOLDEN
"""Noise of a token mixes the key with ``token * TOKEN_FACTOR + TOKEN_OFFSET``."""
TARGET_STREAM = 0
"""The verifier's choice of tokens: noise that a drafter may reproduce."""
PROPOSAL_STREAM = 1
"""The drafter's choice of proposals: must be independent of the verifier's."""
RULE_STREAM = 2
"""Numbers of verification rules, indexed by the count of earlier draws; never used for a position's own choice."""
STEP_STREAM = 3
"""Seeds of drafts that must not reuse the numbers of earlier drafts of their sequence."""
TREE_STREAM = 4
"""Nodes of sampled trees: node j takes the number of stream ``TREE_STREAM + j`` at the position of the draft's first
token. So there must be no higher streams."""


def _mix(value: int) -> int:
    value = ((value ^ (value >> 30)) * _FIRST_FACTOR) & _MASK
    value = ((value ^ (value >> 27)) * _SECOND_FACTOR) & _MASK
    return value ^ (value >> 31)


def uniform(seed: int, position: int, stream: int) -> float:
    """Return a number in [0, 1) with 53 random bits.

    Args:
        seed: the request's seed, any integer (taken modulo 2**64).
        position: absolute index in the sequence of the token that the number decides.
        stream: the number's purpose; streams of one seed are independent.
    """
    word = _mix((seed + _GOLDEN * (stream + 1)) & _MASK)
    word = _mix(word ^ _mix((position * _GOLDEN + 0xD1B54A32D192ED03) & _MASK))
    return (word >> 11) * 2.0**-53


def noise_key(seed: int, position: int) -> int:
    """Return 64 bits that are mixed with every token of a position, into words whose first 52 bits are Gumbel noise.

    ``argmax(log p + noise)`` is a draw from p. A drafter and a verifier that use the same noise for similar
    distributions mostly draw the same token (Gumbel coupling, arXiv 2408.07978).
    """
    return _mix(_mix((seed + _GOLDEN * (TARGET_STREAM + 1)) & _MASK) ^ ((position * _GOLDEN + _FIRST_FACTOR) & _MASK))
