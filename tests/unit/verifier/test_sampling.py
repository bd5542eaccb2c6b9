"""Gumbel draws, compared with the definition, and the random numbers of positions."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from speculant_graph.random_stream import PROPOSAL_STREAM, TARGET_STREAM, uniform
from speculant_verifier.sampling.distribution import gumbel_argmax, gumbel_argmaxs
from support.noise import gumbel_noise

SEEDS = st.integers(0, 2**63 - 1 + 1_000)
POSITIONS = st.integers(0, 2**31)


def by_definition(scores, seed, position):
    sums = scores.astype(np.float64) + gumbel_noise(seed, position, np.arange(len(scores)))
    return int(sums.argmax()), sums.max()


def ways(scores, seed, position):
    yield gumbel_argmax(scores, seed, position)
    yield gumbel_argmaxs(torch.from_numpy(scores)[None], seed, [position])[0]


def assert_defined(scores, seed, position):
    token, largest = by_definition(scores, seed, position)
    for chosen, total in ways(scores, seed, position):
        assert chosen == token
        assert total == pytest.approx(largest, abs=1e-12)


@given(
    st.lists(st.one_of(st.floats(-60, 60, width=32), st.just(-math.inf)), min_size=1, max_size=300), SEEDS, POSITIONS
)
def test_a_draw_is_the_gumbel_argmax_of_score_and_noise(values, seed, position):
    scores = np.array(values, np.float32)
    if scores.max() > -np.inf:
        assert_defined(scores, seed, position)
    else:
        assert all(not math.isfinite(total) for _, total in ways(scores, seed, position))


@pytest.mark.parametrize("spread", [0.0, 0.3, 2.0, 6.0, 30.0])
@settings(max_examples=8)
@given(seed=SEEDS, position=POSITIONS)
def test_so_it_is_in_large_vocabularies_however_flat(spread, seed, position):
    scores = np.random.default_rng(seed).normal(0, spread, 201_088).astype(np.float32)
    assert_defined(scores, seed, position)
    scores[np.random.default_rng(position).random(len(scores)) < 0.999] = -np.inf
    assert_defined(scores, seed, position)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("place", [0, 7, 59])
@pytest.mark.parametrize("rest", [0.0, -math.inf, 3e38])
def test_scores_that_are_no_numbers_make_the_sum_no_number(bad, place, rest):
    scores = np.full(60, rest, np.float32)
    scores[place] = bad
    assert all(not math.isfinite(total) for _, total in ways(scores, 1, 2))


def test_rounding_of_flat_scores_moves_hardly_a_draw():
    """An inverse-CDF draw has a border at every token; here only the two largest sums matter."""
    size, trials = 50_000, 400
    generator = np.random.default_rng(3)
    moved = {"largest sum": 0, "inverse": 0}
    for position in range(trials):
        scores = generator.normal(0, 1, size).astype(np.float32)
        rounded = (scores * (1 + generator.normal(0, 2e-4, size))).astype(np.float32)
        moved["largest sum"] += gumbel_argmax(scores, 0, position)[0] != gumbel_argmax(rounded, 0, position)[0]
        number = uniform(0, position, TARGET_STREAM)
        cumulative = [np.exp(each.astype(np.float64)).cumsum() for each in (scores, rounded)]
        moved["inverse"] += len({int((each / each[-1]).searchsorted(number)) for each in cumulative}) - 1
    assert moved["largest sum"] <= 1
    assert moved["inverse"] >= 10  # a control: without it, the test could not fail


def test_uniform_numbers_of_seeds_positions_and_streams_are_independent():
    size, bins = 20_000, 8
    for seed, stream in itertools.product((0, 1, 2**62), (TARGET_STREAM, PROPOSAL_STREAM)):
        numbers = np.array([uniform(seed, position, stream) for position in range(size)])
        assert numbers.min() >= 0
        assert numbers.max() < 1
        cells = np.bincount((numbers * bins).astype(int), minlength=bins)
        assert chisquare(cells).pvalue > 1e-4
        pairs = np.bincount((numbers[:-1] * bins).astype(int) * bins + (numbers[1:] * bins).astype(int), minlength=64)
        assert chisquare(pairs).pvalue > 1e-4
    first = np.array([uniform(seed, 5, TARGET_STREAM) for seed in range(size)])
    other = np.array([uniform(seed, 5, PROPOSAL_STREAM) for seed in range(size)])
    assert abs(np.corrcoef(first, other)[0, 1]) < 0.03
    assert abs(np.corrcoef(first[:-1], first[1:])[0, 1]) < 0.03
