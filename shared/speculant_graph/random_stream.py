"""Counter-based random numbers: a pure function of (seed, position, stream).

There is no generator state, so a request draws the same numbers if it is retried, moved to another batch or decoded
with other drafts. The mixing function is SplitMix64's finaliser (Steele, Lea and Flood 2014).
"""

from __future__ import annotations

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST_FACTOR, _SECOND_FACTOR = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB

WORD_FACTORS = _FIRST_FACTOR, _SECOND_FACTOR
"""Multipliers of SplitMix64's finaliser; its shifts are 30, 27 and 31 bits."""
TOKEN_FACTOR, TOKEN_OFFSET = _FIRST_FACTOR, _GOLDEN
"""Constants of a token's Gumbel noise, which mixes the key with ``token * TOKEN_FACTOR + TOKEN_OFFSET``."""
TARGET_STREAM = 0
"""Stream of the noise by which the verifier chooses tokens; a drafter may reproduce this noise."""
PROPOSAL_STREAM = 1
"""Stream of the drafter's proposals, which must be independent of the verifier's choice."""
RULE_STREAM = 2
"""Stream of the numbers that verification rules draw, indexed by the number of earlier draws. The numbers of this
stream never choose the token at a position."""
STEP_STREAM = 3
"""Stream of seeds for drafts that must not reuse random numbers of the sequence's earlier drafts."""
TREE_STREAM = 4
"""First stream for the nodes of sampled trees. Node j uses stream ``TREE_STREAM + j`` at the position of the draft's
first token, so all higher stream numbers are in use."""


def _mix(value: int) -> int:
    value = ((value ^ (value >> 30)) * _FIRST_FACTOR) & _MASK
    value = ((value ^ (value >> 27)) * _SECOND_FACTOR) & _MASK
    return value ^ (value >> 31)


def uniform(seed: int, position: int, stream: int) -> float:
    """Return a number in [0, 1) with 53 random bits.

    Args:
        seed: the request's seed, any integer (taken modulo 2**64).
        position: index, in the whole sequence, of the token that depends on the number.
        stream: the number's purpose; streams of one seed are independent.
    """
    word = _mix((seed + _GOLDEN * (stream + 1)) & _MASK)
    word = _mix(word ^ _mix((position * _GOLDEN + 0xD1B54A32D192ED03) & _MASK))
    return (word >> 11) * 2.0**-53


def noise_key(seed: int, position: int) -> int:
    """Return the 64-bit key of the Gumbel noise at a position.

    Mixing the key with a token id gives a word whose first 52 bits make the token's Gumbel noise.

    ``argmax(log p + noise)`` is a draw from p. A drafter and a verifier that use the same noise for similar
    distributions mostly draw the same token (Gumbel coupling, arXiv 2408.07978).
    """
    return _mix(_mix((seed + _GOLDEN * (TARGET_STREAM + 1)) & _MASK) ^ ((position * _GOLDEN + _FIRST_FACTOR) & _MASK))
