"""Row targets: lazy and batched results are equal, each node is computed once, errors affect one request."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare
from transformers import LogitsProcessor, LogitsProcessorList

from speculant_graph.config import GenerationConfig
from speculant_graph.errors import GenerationError
from speculant_graph.random_stream import TARGET_STREAM, uniform
from speculant_graph.types import EMPTY_DRAFT, Draft
from speculant_verifier.rules.follow import follow
from speculant_verifier.sampling import Distribution, RowContext, RowTarget, Sampler, processors_of, targets_of
from speculant_verifier.sampling.row_target import choices_at_once

TREE = Draft((4, 5, 6, 7), (0, 1, 0, 3))
"""Two chains of two nodes."""


def sampler_of(config, size=60):
    return Sampler(config, processors_of(config, 3, (2,), size, torch.device("cpu")))


def logits_of(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 3


MIXED = [
    GenerationConfig(), GenerationConfig(temperature=0.9, top_p=0.9, seed=1), GenerationConfig(repetition_penalty=1.3),
    GenerationConfig(temperature=1.0, seed=2), GenerationConfig(temperature=1.2, top_k=5, min_p=0.05, seed=3),
    GenerationConfig(temperature=0.9, rule="gumbel"), GenerationConfig(), GenerationConfig(logit_bias={3: 9.0}),
]  # fmt: skip


@pytest.mark.parametrize("configs", [MIXED, [GenerationConfig()] * 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_choices_at_once_are_those_made_one_by_one(configs, dtype):
    drafts = [TREE, Draft((3,), (0,)), EMPTY_DRAFT, Draft((1, 2, 3, 4), (0, 1, 2, 3))] * 2
    for seed in range(8):
        logits = logits_of(len(configs), 5, 60, seed=seed).to(dtype)
        rows = [
            RowContext(sampler_of(config), list(range(3 + index)), draft)
            for index, (config, draft) in enumerate(zip(configs, drafts, strict=False))
        ]
        at_once = choices_at_once(logits, rows)
        for row, target, chosen in zip(rows, targets_of(logits, rows), at_once, strict=True):
            config = row.sampler.config
            is_batched = not row.sampler.needs_prefix and not config.logit_bias
            assert bool(chosen) == is_batched
            for node in range(len(row.draft) + 1) if chosen else ():
                assert target.choice_after(node) == chosen[node][0]


def test_a_choice_depends_on_position_and_prefix_not_on_the_draft():
    config = GenerationConfig(temperature=1.0, repetition_penalty=3.0, seed=9)
    logits = logits_of(5, 60)
    target = RowTarget(sampler_of(config), logits, [8, 9], TREE)
    for node, path in enumerate(([], [4], [4, 5], [6], [6, 7])):
        alone = RowTarget(sampler_of(config), logits[node : node + 1], [8, 9, *path], EMPTY_DRAFT)
        assert target.choice_after(node) == alone.choice_after(0)
        p = target.after(node).probabilities_of(np.arange(60))
        np.testing.assert_array_equal(p, alone.after(0).probabilities_of(np.arange(60)))


class Recorder(LogitsProcessor):
    """Stateful: records every prefix."""

    def __init__(self):
        self.prefixes = []

    def __call__(self, input_ids, scores):
        self.prefixes.append(input_ids[0].tolist())
        return scores


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_stateful_processors_see_what_is_emitted_once_and_in_order(temperature):
    recorder, config = Recorder(), GenerationConfig(temperature=temperature)
    logits = torch.full((5, 60), -1e4)
    for node, token in enumerate((6, 0, 0, 7, 1)):  # the second chain is right
        logits[node, token] = 1e4
    target = RowTarget(Sampler(config, LogitsProcessorList([recorder])), logits, [8, 9], TREE)
    verdict = follow(TREE, target, float)
    assert verdict.token_ids == (6, 7, 1)
    for node in (0, 3, 4):  # repeated reads call no processor
        target.choice_after(node)
        target.after(node)
    assert recorder.prefixes == [[8, 9], [8, 9, 6], [8, 9, 6, 7]]


@pytest.mark.parametrize("config", [
    GenerationConfig(), GenerationConfig(temperature=1.0), GenerationConfig(temperature=1.0, top_p=0.9),
    GenerationConfig(repetition_penalty=1.2), GenerationConfig(temperature=1.0, rule="gumbel"),
    GenerationConfig(temperature=1.0, top_k=3, min_p=0.1),
])  # fmt: skip
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("at_once", [False, True])
def test_logits_that_are_no_numbers_are_an_error_of_that_row_alone(config, bad, at_once):
    logits = logits_of(2, 2, 60)
    logits[0, 1, 17] = bad
    draft = Draft((4,), (0,))
    rows = [RowContext(sampler_of(config), [1, 2], draft)] * 2
    chosen = choices_at_once(logits, rows) if at_once else [(), ()]
    first, second = (RowTarget(sampler_of(config), logits[i], [1, 2], draft, chosen[i]) for i in range(2))
    assert first.choice_after(0) >= 0  # the bad node has not been read yet
    for look in (first.choice_after, first.after):
        with pytest.raises(GenerationError) as caught:
            look(1)
        assert caught.value.kind == "internal"
    assert second.choice_after(1) == second.choice_after(1)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("top_p", [1.0, 0.5])
def test_no_token_left_is_an_error(temperature, top_p):
    config = GenerationConfig(temperature=temperature, top_p=top_p, logit_bias=dict.fromkeys(range(60), -math.inf))
    target = RowTarget(sampler_of(config), logits_of(1, 60), [1, 2], EMPTY_DRAFT)
    with pytest.raises(GenerationError) as caught:
        target.choice_after(0)
    assert caught.value.kind == "wrong_request"
    assert all(math.isnan(evidence) or not math.isfinite(evidence) for _, evidence in (
        choices_at_once(logits_of(1, 1, 60), [RowContext(sampler_of(config), [1, 2], EMPTY_DRAFT)])[0]
    ))  # fmt: skip


@st.composite
def draws(draw):
    size = draw(st.integers(2, 12))
    values = draw(st.lists(st.sampled_from([-math.inf, -2.0, 0.0, 0.5, 3.0]), min_size=size, max_size=size))
    token_ids = draw(st.lists(st.integers(0, size - 1), unique=True, max_size=size))
    weights = draw(st.lists(st.sampled_from([0.0, 0.1, 0.7]), min_size=len(token_ids), max_size=len(token_ids)))
    scale = draw(st.sampled_from([0.0, 0.3, 1.0]))
    return values, token_ids, weights, scale, draw(st.floats(0, 1, exclude_max=True))


@given(draws())
def test_draws_equal_a_loop_over_the_vocabulary(case):
    values, token_ids, weights, scale, number = case
    if max(values) == -math.inf:
        return
    p = torch.softmax(torch.tensor(values), -1, dtype=torch.float64).tolist()
    distribution = Distribution.of_scores(torch.tensor(values))
    np.testing.assert_allclose(distribution.probabilities_of(np.arange(len(values))), p, atol=1e-15)
    all_weights = [weights[token_ids.index(t)] if t in token_ids else scale * p[t] for t in range(len(p))]
    drawn = distribution.draw(number, np.array(token_ids, np.int64), np.array(weights), scale)
    if not any(all_weights):
        assert p[drawn] > 0
        return
    assert all_weights[drawn] > 0
    before, total = sum(all_weights[:drawn]), sum(all_weights)
    assert before - 1e-12 <= number * total <= before + all_weights[drawn] + 1e-12


def test_draws_over_many_blocks_have_their_distribution_and_never_weight_zero():
    size = 5_000
    scores = logits_of(size) / 2
    p = torch.softmax(scores, -1, dtype=torch.float64).numpy()
    distribution = Distribution.of_scores(scores)
    drawn = np.array([distribution.choose(uniform(1, count, TARGET_STREAM)) for count in range(20_000)])
    assert chisquare(np.bincount(drawn // 250, minlength=20), 20_000 * p.reshape(20, 250).sum(1)).pvalue > 1e-4
    weights = np.zeros(size)
    weights[[3, 1024, 4999]] = 1e-9
    for number in np.linspace(0, 1, 301)[:-1]:
        token = distribution.draw(float(number), np.arange(size), weights, 1.0)
        assert token == (3, 1024, 4999)[int(number * 3 + 1e-9)]
    assert distribution.draw(math.nextafter(1, 0), np.arange(size), weights, 1.0) == 4999
    last = np.arange(size - 10, size)
    assert distribution.draw(math.nextafter(1, 0), last, np.zeros(10), 1.0) < size - 10
    weights = np.where(np.arange(size) == 7, 5e-324, 0.0)  # so small that any share of it rounds to all of it
    assert distribution.draw(0.9, np.arange(size), weights, 1.0) == 7


def test_tokens_that_a_drafter_names_outside_of_the_vocabulary_have_no_probability():
    for distribution in (Distribution(None, np.array([0.25, 0.75])), Distribution.of_token(1)):
        token_ids = np.array([1, 2, 2**31])
        assert distribution.probabilities_of(token_ids)[1:].tolist() == [0.0, 0.0]
        assert distribution.draw(0.5, token_ids, np.array([0.5, 0.0, 0.0]), 1.0) == 1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_choices_on_a_gpu_are_those_on_the_cpu():
    for seed in range(4):
        logits = logits_of(len(MIXED), 5, 60, seed=seed)
        for config, row in zip(MIXED, logits, strict=True):
            on_cpu = RowTarget(sampler_of(config), row, [1, 2, 3], TREE)
            sampler = Sampler(config, processors_of(config, 3, (2,), 60, torch.device("cuda")))
            [on_gpu] = targets_of(row[None].cuda(), [RowContext(sampler, [1, 2, 3], TREE)])
            for node in range(5):
                assert on_gpu.choice_after(node) == on_cpu.choice_after(node)
                p = [target.after(node).probabilities_of(np.arange(60)) for target in (on_cpu, on_gpu)]
                np.testing.assert_allclose(p[0], p[1], atol=1e-6)
            assert on_gpu.top_after(1, 5)[0] == on_cpu.top_after(1, 5)[0]
