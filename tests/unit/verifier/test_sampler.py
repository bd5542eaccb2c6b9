"""Scores and choices equal those of transformers for all settings; ``congruence`` decodes whole texts."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from scipy.stats import chisquare
from transformers import LogitsProcessor, LogitsProcessorList

from speculant_graph.config import GenerationConfig
from speculant_graph.errors import GenerationError
from speculant_graph.random_stream import RULE_STREAM, TARGET_STREAM, uniform
from speculant_graph.types import EMPTY_DRAFT
from speculant_verifier.sampling import RowTarget, Sampler, processors_of
from support.transformers_settings import TOKENIZER, sampling_settings, transformers_processors

CPU = torch.device("cpu")
PROMPT = TOKENIZER.encode("that the cat")


def sampler_of(config, prompt_length=12, end_token_ids=(257,), vocabulary_size=258):
    processors = processors_of(config, prompt_length, end_token_ids, vocabulary_size, CPU)
    return Sampler(config, processors)


@given(sampling_settings())
def test_scores_are_those_of_transformers(llama, config):
    logits = torch.randn(258, generator=torch.Generator().manual_seed(1)) * 3
    prefix = PROMPT * 2
    theirs = transformers_processors(llama, config, len(PROMPT), [257])(torch.tensor([prefix]), logits[None])[0]
    sampler = sampler_of(config)
    mine = sampler.scores(logits, prefix)
    assert mine.dtype == torch.float32
    torch.testing.assert_close(mine, theirs, rtol=0, atol=0)
    if config.temperature:
        p = RowTarget(sampler, logits[None], prefix, EMPTY_DRAFT).after(0).probabilities_of(np.arange(258))
        np.testing.assert_allclose(p, torch.softmax(theirs, -1, dtype=torch.float64).numpy(), atol=1e-15)


def test_greedy_is_argmax_on_near_ties_and_the_first_of_equals():
    logits = torch.zeros(4, 50)
    logits[0, 7], logits[1, 9], logits[2, 49] = 1e-6, 1e-45, 3.0
    sampler = sampler_of(GenerationConfig(), end_token_ids=(), vocabulary_size=50)
    chosen = [RowTarget(sampler, row[None], PROMPT, EMPTY_DRAFT).choice_after(0) for row in logits]
    assert chosen == [7, 9, 49, 0] == logits.argmax(-1).tolist()


class Writes(LogitsProcessor):
    """A user's processor that modifies its scores in place."""

    def __call__(self, input_ids, scores):
        scores[:, 0] = float("inf") if input_ids[0, -1] == PROMPT[-1] else -float("inf")
        return scores.clamp(max=1e4)


def test_a_processor_of_a_user_may_write_into_its_scores():
    with torch.inference_mode():
        logits = torch.randn(1, 258)
    before = logits.clone()
    sampler = Sampler(GenerationConfig(), LogitsProcessorList([Writes()]))
    assert sampler.needs_prefix
    assert RowTarget(sampler, logits, PROMPT, EMPTY_DRAFT).choice_after(0) == 0
    assert torch.equal(logits, before)


def test_numbers_for_rules_are_never_given_twice_and_not_those_of_positions():
    sampler = sampler_of(GenerationConfig(seed=3))
    numbers = [sampler.next_number() for _ in range(5000)]
    assert len(set(numbers)) == 5000
    assert not set(numbers) & {uniform(3, position, TARGET_STREAM) for position in range(5000)}
    assert numbers == [uniform(3, count, RULE_STREAM) for count in range(5000)]
    assert chisquare(np.bincount((np.array(numbers) * 16).astype(int), minlength=16)).pvalue > 1e-4
    assert sampler_of(GenerationConfig(seed=3)).next_number() == numbers[0]


@pytest.mark.parametrize("config", [
    GenerationConfig(temperature=1.0), GenerationConfig(temperature=0.7, top_p=0.9),
    GenerationConfig(temperature=1.3, top_k=3), GenerationConfig(temperature=1.0, min_p=0.2),
    GenerationConfig(temperature=1.0, rule="gumbel"), GenerationConfig(temperature=1.2, top_p=0.8, rule="gumbel"),
    GenerationConfig(temperature=1.0, repetition_penalty=1.6),
])  # fmt: skip
def test_two_tokens_have_the_joint_distribution_of_transformers_processors(config):
    """Every seed is a trial; the second token's logits depend on the first token."""
    size, trials = 4, 1_500
    generator = torch.Generator().manual_seed(5)
    first_logits, second_logits = torch.randn(size, generator=generator), torch.randn(size, size, generator=generator)
    sampler = sampler_of(config, 1, (), size)
    expected = np.zeros((size, size))
    p = torch.softmax(sampler.processors(torch.tensor([[0]]), first_logits[None]), -1)[0]
    for token in range(size):
        q = torch.softmax(sampler.processors(torch.tensor([[0, token]]), second_logits[None, token]), -1)[0]
        expected[token] = (p[token].double() * q.double()).numpy()
    counts = np.zeros((size, size))
    for trial in range(trials):
        seed = Sampler(config.model_copy(update={"seed": trial}), sampler.processors)
        first = RowTarget(seed, first_logits[None], [0], EMPTY_DRAFT).choice_after(0)
        second = RowTarget(seed, second_logits[None, first], [0, first], EMPTY_DRAFT).choice_after(0)
        counts[first, second] += 1
    possible = expected > 0
    assert counts[~possible].sum() == 0
    assert chisquare(counts[possible], trials * expected[possible] / expected[possible].sum()).pvalue > 1e-4


@pytest.mark.parametrize(("config", "field"), [
    (GenerationConfig(logit_bias={258: 1.0}), "logit_bias"),
    (GenerationConfig(logit_bias={3: math.nan}), "logit_bias"),
    (GenerationConfig(stop=("x", "")), "stop"),
    (GenerationConfig(end_token_ids=(3, 258)), "end_token_ids"),
    (GenerationConfig(max_tokens=4, min_tokens=5), "min_tokens"),
])  # fmt: skip
def test_settings_that_do_not_fit_are_refused_with_what_to_do(config, field):
    with pytest.raises(GenerationError) as raised:
        sampler_of(config)
    assert raised.value.field == field
    assert ";" in str(raised.value)
    assert "\n" not in str(raised.value)
