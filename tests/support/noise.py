"""Gumbel noise of many tokens in numpy, the reference for the core and the verifier's kernels."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from speculant_graph.random_stream import TOKEN_FACTOR, TOKEN_OFFSET, WORD_FACTORS, noise_key


def gumbel_noise(seed: int, position: int, token_ids: NDArray[np.integer]) -> NDArray[np.float64]:
    """Return standard Gumbel noise, one finite number for each token at one position."""
    word = token_ids.astype(np.uint64) * np.uint64(TOKEN_FACTOR) + np.uint64(TOKEN_OFFSET)
    word ^= np.uint64(noise_key(seed, position))
    word = (word ^ word >> np.uint64(30)) * np.uint64(WORD_FACTORS[0])
    word = (word ^ word >> np.uint64(27)) * np.uint64(WORD_FACTORS[1])
    return gumbel_of(word ^ word >> np.uint64(31))


def gumbel_of(words: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Return the noise from the first 52 bits of each word; with 53 bits the largest value would be infinite."""
    uniforms = ((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    noise: NDArray[np.float64] = -np.log(-np.log(uniforms))
    return noise
