from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare
from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from speculant_graph.config import GenerationConfig
from speculant_graph.random_stream import PROPOSAL_STREAM, TARGET_STREAM, uniform
from speculant_verifier.sampling import choose, inverse_cumulative


def test_greedy_is_argmax_even_on_near_ties():
    logits = torch.zeros(3, 50)
    logits[0, 7], logits[1, 9], logits[2, 49] = 1e-6, 1e-5, 3.0
    assert choose(logits, [0, 1, 2], GenerationConfig(temperature=0.0)) == [7, 9, 49]


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


@pytest.mark.parametrize("config", [
    GenerationConfig(temperature=0.7), GenerationConfig(temperature=1.0),
    GenerationConfig(temperature=1.3, top_k=3), GenerationConfig(temperature=1.0, top_p=0.6),
    GenerationConfig(temperature=0.9, top_k=5, top_p=0.8),
])  # fmt: skip
def test_choices_have_the_distribution_of_transformers_processors(config):
    logits = torch.tensor([2.0, 1.0, 0.5, 0.0, -0.5, -1.0])
    processors = LogitsProcessorList([TemperatureLogitsWarper(config.temperature)])
    if config.top_k:
        processors.append(TopKLogitsWarper(config.top_k))
    if config.top_p < 1:
        processors.append(TopPLogitsWarper(config.top_p))
    expected = torch.softmax(processors(None, logits[None].clone()), -1)[0].double().numpy()
    size = 20_000
    # One seed, many positions: the numbers of a stream are independent.
    chosen = choose(logits.expand(size, -1), range(size), config)
    counts = np.bincount(chosen, minlength=6)
    assert counts[expected == 0].sum() == 0
    possible = expected > 0
    assert chisquare(counts[possible], size * expected[possible] / expected[possible].sum()).pvalue > 1e-4


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
