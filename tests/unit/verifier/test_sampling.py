from __future__ import annotations

import itertools

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from speculant_graph.random_stream import PROPOSAL_STREAM, TARGET_STREAM, uniform
from speculant_verifier.sampling import inverse_cumulative


@given(
    st.lists(st.integers(0, 5), min_size=2, max_size=8).filter(any),
    st.floats(0, 1, exclude_max=True),
)
def test_inverse_cumulative_equals_a_loop(weights, number):
    probabilities = torch.tensor([weights], dtype=torch.float64) / sum(weights)
    running, expected = 0.0, None
    for index, probability in enumerate(probabilities[0].tolist()):
        running += probability
        if probability > 0 and running > number * probabilities[0].cumsum(0)[-1].item():
            expected = index
            break
    if expected is None:  # rounding left nothing above the number
        expected = max(i for i, w in enumerate(weights) if w)
    [chosen] = inverse_cumulative(probabilities, [number])
    assert weights[chosen] > 0
    assert chosen == expected


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
