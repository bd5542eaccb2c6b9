"""Gumbel noise shared by drafter and verifier: a pure function with the right distribution."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2_contingency, chisquare, gumbel_r

from speculant_graph.random_stream import PROPOSAL_STREAM, TARGET_STREAM, uniform
from support.noise import gumbel_noise, gumbel_of

GOLDEN, FIRST, MASK = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, (1 << 64) - 1


def mixed(value):
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def slow_noise(seed, position, token):
    """The noise of one token, computed with Python's unbounded integers."""
    key = mixed(mixed((seed + GOLDEN) % 2**64) ^ ((position * GOLDEN + FIRST) % 2**64))
    word = mixed(key ^ ((token * FIRST + GOLDEN) % 2**64))
    return -math.log(-math.log(((word >> 12) + 0.5) / 2**52))


@given(
    st.integers(-(2**63), 2**64), st.integers(0, 2**40), st.lists(st.integers(0, 2**32 - 1), max_size=20),
    st.sampled_from([np.uint32, np.int64, np.uint64]),
)  # fmt: skip
def test_noise_equals_whole_numbers_of_any_size(seed, position, token_ids, kind):
    noise = gumbel_noise(seed, position, np.array(token_ids, kind))
    assert noise.dtype == np.float64
    assert noise.tolist() == pytest.approx([slow_noise(seed, position, token) for token in token_ids], rel=1e-13)


def test_noise_is_finite_at_both_ends():
    lowest, highest = gumbel_of(np.array([0, 2**64 - 1], np.uint64)).tolist()
    assert lowest == pytest.approx(-math.log(53 * math.log(2)))
    assert highest == pytest.approx(53 * math.log(2))
    # With one more bit, the highest number would round to 1.
    assert ((2**53 - 1) + 0.5) * 2.0**-53 == 1.0


def test_noise_of_neighbours_is_independent():
    size, bins = 20_000, 8

    def cells(noise):
        return (gumbel_r.cdf(noise) * bins).astype(int)

    tokens = np.arange(size)
    here = gumbel_noise(3, 10, tokens)
    others = {
        "next token": np.roll(here, -1),
        "next position": gumbel_noise(3, 11, tokens),
        "next seed": gumbel_noise(4, 10, tokens),
    }
    for name, other in others.items():
        pairs = np.bincount(cells(here) * bins + cells(other), minlength=bins * bins)
        assert chisquare(pairs).pvalue > 1e-3, name
    along = np.concatenate([gumbel_noise(3, position, np.array([8])) for position in range(size)])
    for stream in (TARGET_STREAM, PROPOSAL_STREAM):
        numbers = np.array([uniform(3, position, stream) for position in range(size)])
        pairs = np.bincount(cells(along) * bins + (numbers * bins).astype(int), minlength=bins * bins)
        assert chisquare(pairs).pvalue > 1e-3, stream


def test_the_highest_sum_has_the_distribution_p():
    p = np.array([0.5, 0.3, 0.15, 0.04, 0.01, 0.0])
    with np.errstate(divide="ignore"):
        log_p = np.log(p)
    tokens = np.array([0, 1, 2, 70_000, 200_000, 5])
    size = 20_000
    chosen = [int((log_p + gumbel_noise(11, position, tokens)).argmax()) for position in range(size)]
    counts = np.bincount(chosen, minlength=6)
    assert counts[5] == 0
    assert chisquare(counts[:5], size * p[:5]).pvalue > 1e-3
    pairs = np.zeros((2, 2))
    for first, second in itertools.pairwise(chosen):
        pairs[first > 0, second > 0] += 1
    assert chi2_contingency(pairs).pvalue > 1e-3
