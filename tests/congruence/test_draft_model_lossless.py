"""The same token ids with a draft model, alone and beside n-grams, in any company and any memory."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

import pytest

from congruence import test_lossless_rules as sampled
from support.draft_models import model_drafter, noisy
from support.lossless import WINDOW, Moody, alone, decode, graph_like, local_drafter, mixed_jobs
from support.tiny_models import tiny_gpt_oss, tiny_model

NUM_TOKENS = 24


@cache
def target_of(family, ring=True):
    make = tiny_gpt_oss if family == "gpt_oss" else lambda **options: tiny_model(family, **options)
    return make(window=WINDOW, ring_cache=ring)


@cache
def plain(family):
    jobs = mixed_jobs(NUM_TOKENS)
    outputs = [alone(target_of(family), job) for job in jobs]
    return jobs, outputs, graph_like(jobs, outputs)


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside n-grams"])
@pytest.mark.parametrize("family", ["gpt_oss", "llama", "qwen2"])
def test_in_a_ragged_batch(family, beside):
    jobs, outputs, graph = plain(family)
    drafter = model_drafter(noisy(target_of(family), 0.02), local_drafter(graph, "tree", 8) if beside else None)
    strategy = "tree" if beside else "model"
    outcome = decode(target_of(family), jobs, drafter, 8, strategy=strategy)
    assert outcome.outputs == outputs
    assert drafter.num_passes > (5 if beside else 20)
    assert sum(sum(each.accepted_by_depth) for each in outcome.sequences) > 40, "or nothing was tested"
    drafter.close()


@pytest.mark.parametrize(
    "options",
    [{"max_kv_tokens": 464 * 4, "prefill_chunk": 7}, {"target_cache": 2_000_000}, {"max_batch_size": 3}],
    ids=["tight", "target cache", "few rows"],
)
def test_memory_and_company(options):
    jobs, outputs, graph = plain("gpt_oss")
    joining = [replace(job, after_steps=3 * index) for index, job in enumerate(jobs)]
    model = noisy(target_of("gpt_oss", ring=False), 0.02)
    drafter = model_drafter(model, Moody(local_drafter(graph, "tree", 9), 0.3), rows=5)
    assert decode(target_of("gpt_oss"), joining, drafter, 9, strategy="tree", **options).outputs == outputs


@pytest.mark.parametrize("seed", range(6))
def test_at_random(seed):
    generator = random.Random(seed)
    jobs, outputs, graph = plain("gpt_oss")
    gap, budget, beside = generator.choice([0, 1, 6]), generator.choice([1, 3, 12, 40]), generator.random() < 0.6
    order = generator.sample(range(len(jobs)), len(jobs))
    chosen = [replace(jobs[index], after_steps=gap * rank) for rank, index in enumerate(order)]
    drafter = model_drafter(
        noisy(target_of("gpt_oss"), generator.choice([0.0, 0.02, 0.2])),
        local_drafter(graph, "tree", budget) if beside else None,
        budget=budget, rows=generator.choice([2, 8]), max_depth=generator.choice([1, 4, 24]),
        max_branches=generator.choice([1, 8]),
    )  # fmt: skip
    outcome = decode(target_of("gpt_oss"), chosen, drafter, budget, strategy="tree" if beside else "model")
    assert outcome.outputs == [outputs[index] for index in order]


@pytest.mark.parametrize(
    ("rule", "number"),
    [
        ("block", sampled.FEW),
        *(
            pytest.param(rule, sampled.MANY, marks=pytest.mark.slow)
            for rule in ("token", "block", "tree-wor", "tree-iid")
        ),
    ],
)
def test_joint_distribution_in_the_real_engine(rule, number):
    """Rules that weigh p against q follow the model's trees, of which no q is known."""
    drafter = model_drafter(noisy(sampled.target(), 0.3), budget=12, rows=64)
    outputs, accepted = sampled.outputs_of(rule, drafter, number, 9 * 10**6, max_tokens=8, strategy="model")
    assert accepted > 1.0
    assert sampled.p_value(outputs) > 1e-4


def test_a_model_that_fails_costs_its_drafts_alone(monkeypatch):
    jobs, outputs, graph = plain("gpt_oss")
    model = noisy(target_of("gpt_oss"), 0.02)
    drafter = model_drafter(model, local_drafter(graph, "tree", 8))
    forward, calls = model.model.forward, []

    def failing(*arguments, **options):
        calls.append(1)
        if len(calls) == 8:
            raise RuntimeError("a device is gone")
        return forward(*arguments, **options)

    monkeypatch.setattr(model.model, "forward", failing)
    assert decode(target_of("gpt_oss"), jobs, drafter, 8, strategy="tree").outputs == outputs
    assert len(calls) == 8
