"""Token ids stay the same across drafters, strategies, caches, batches, memory limits and failures."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

import pytest

from speculant_graph.config import GenerationConfig, VerifierConfig
from speculant_graph.strategies import NGRAM_STRATEGIES
from speculant_verifier.demo.run import MODEL_FOLDER
from speculant_verifier.model import TargetModel
from speculant_verifier.nasd.nasd_drafter import NasdDrafter
from support.draft_models import model_drafter, noisy
from support.drafters import ScriptedDrafter, knowing, knowing_tree
from support.lossless import WINDOW, Job, Moody, alone, decode, graph_like, local_drafter, mixed_jobs
from support.tiny_models import tiny_gpt_oss, tiny_model

KINDS = (
    *NGRAM_STRATEGIES,
    "nasd",
    "scripted chain",
    "scripted tree",
    "model",
    "model with n-grams",
    "model by specexec",
)
FAMILIES = ("gpt_oss", "llama", "qwen2", "qwen3")
NUM_TOKENS = 16
BOUND = 464 * 4
"""Slots for four of the longest requests; further requests wait."""


@cache
def target_of(family):
    return tiny_gpt_oss(window=WINDOW) if family == "gpt_oss" else tiny_model(family, window=WINDOW)


@cache
def plain(family, seed=0):
    """Return (jobs, output of each job alone without drafts, graph of similar texts)."""
    jobs = mixed_jobs(NUM_TOKENS, seed)
    outputs = [alone(target_of(family), job) for job in jobs]
    return jobs, outputs, graph_like(jobs, outputs)


def strategy_of(kind):
    own = {"model": "model", "model with n-grams": "tree", "model by specexec": "specexec", "nasd": "nasd"}
    return own.get(kind, kind if kind in NGRAM_STRATEGIES else "greedy")


def drafter_for(kind, family, seed, budget, rng, failures=0.0):
    jobs, outputs, graph = plain(family, seed)
    if kind.startswith("model"):
        beside = kind.endswith("n-grams")
        ngrams = Moody(local_drafter(graph, "tree", budget), failures, rng.randrange(99)) if beside else None
        model = noisy(target_of(family), rng.choice([0.0, 0.02, 0.2]))
        rows, max_depth = rng.choice([2, 8]), rng.choice([4, 24])
        options = {"strategy": "specexec"} if kind == "model by specexec" else {}
        return model_drafter(model, ngrams, budget=budget, rows=rows, max_depth=max_depth, **options)
    if kind == "nasd":
        drafter = NasdDrafter()
    elif kind in NGRAM_STRATEGIES:
        drafter = local_drafter(graph, kind, budget)
    else:
        texts = [[*job.prompt, *output] for job, output in zip(jobs, outputs, strict=True)]
        script = (
            knowing(texts, 0.8, 258, 1) if kind == "scripted chain" else knowing_tree(texts, 258, rng.randrange(99))
        )
        drafter = ScriptedDrafter(script)
    return Moody(drafter, failures, rng.randrange(99))


@pytest.mark.parametrize("kind", KINDS)
def test_every_drafter_in_a_ragged_batch(kind):
    jobs, outputs, _ = plain("gpt_oss")
    drafter = drafter_for(kind, "gpt_oss", 0, 8, random.Random(0))
    outcome = decode(target_of("gpt_oss"), jobs, drafter, 8, strategy=strategy_of(kind))
    assert outcome.outputs == outputs
    accepted = sum(sum(each.accepted_by_depth) for each in outcome.sequences)
    assert accepted > 10, "or nothing was tested"
    for each in outcome.sequences:
        assert len(each.output) == sum(each.accepted_by_depth) + each.num_steps


@pytest.mark.parametrize(
    "options",
    [
        {"max_kv_tokens": BOUND, "prefill_chunk": 7},
        {"max_kv_tokens": BOUND, "target_cache": 2_000_000},
        {"max_batch_size": 3, "prefill_chunk": 60},
    ],
    ids=["tight", "feedback and target cache", "few rows"],
)
@pytest.mark.parametrize("kind", ["tree", "model with n-grams"])
def test_memory_and_company(options, kind):
    jobs, outputs, _ = plain("gpt_oss")
    joining = [replace(job, after_steps=3 * index) for index, job in enumerate(jobs)]
    drafter = drafter_for(kind, "gpt_oss", 0, 9, random.Random(0), failures=0.3)
    outcome = decode(target_of("gpt_oss"), joining, drafter, 9, strategy="tree", **options)
    assert outcome.outputs == outputs


def random_scenario(rng, family):
    """Run a random scenario.

    Returns:
        A description for failure messages, the outputs, and the expected outputs.
    """
    seed, budget = rng.randrange(3), rng.choice([1, 3, 8, 24, 60])
    kind = rng.choice(KINDS)
    tight = rng.random() < 0.5
    options = {
        "max_batch_size": rng.choice([1, 2, 5, 8]),
        "prefill_chunk": rng.choice([7, 64, 130, 512]),
        "max_kv_tokens": rng.choice([500, 1000, BOUND]) if tight else 0,
        "target_cache": rng.choice([0, 0, 300_000]),
    }
    jobs, outputs, _ = plain(family, seed)
    speculation, gap = rng.choice(["on", "auto"]), rng.choice([0, 0, 1, 6])
    order = rng.sample(range(len(jobs)), len(jobs))
    chosen = [
        replace(
            jobs[index],
            config=jobs[index].config.model_copy(update={"speculation": speculation}),
            after_steps=gap * rank,
        )
        for rank, index in enumerate(order)
    ]
    drafter = drafter_for(kind, family, seed, budget, rng, rng.choice([0.0, 0.4]))
    target = target_of(family)
    outcome = decode(target, chosen, drafter, budget, strategy=strategy_of(kind), **options)
    return (kind, budget, options, speculation, gap, order), outcome.outputs, [outputs[index] for index in order]


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_other_families_at_random(family):
    rng = random.Random(family)
    for _ in range(2):
        scenario, written, expected = random_scenario(rng, family)
        assert written == expected, scenario


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("family", FAMILIES)
def test_anything_at_random(family, seed):
    rng = random.Random(f"{family} {seed}")
    for _ in range(10):
        scenario, written, expected = random_scenario(rng, family)
        assert written == expected, scenario


@pytest.mark.slow
@pytest.mark.parametrize("length", [*range(1, 12), *range(118, 140, 3), 255, 256, 257, 383, 384, 385, 399])
def test_prompts_of_any_length(length):
    rng = random.Random(length)
    prompt = tuple(rng.randrange(250) for _ in range(length))
    sampled = GenerationConfig(max_tokens=20, temperature=0.9, top_p=0.9, seed=length, ignore_end_tokens=True)
    for config in (sampled, sampled.model_copy(update={"temperature": 0.0})):
        job = Job(prompt, config)
        output = alone(target_of("gpt_oss"), job)
        text = [*prompt, *output]
        for chunk in (7, 128, 512):
            for script in (knowing([text], 0.85, 258, length), knowing_tree([text], 258, length)):
                outcome = decode(target_of("gpt_oss"), [job], ScriptedDrafter(script), 12, prefill_chunk=chunk)
                assert outcome.outputs == [output], chunk


def test_a_repeated_prompt_comes_from_the_target_cache():
    """A repeated greedy request needs no pass at all."""
    jobs, outputs, graph = plain("gpt_oss")
    target = target_of("gpt_oss")
    greedy = [(job, output) for job, output in zip(jobs, outputs, strict=True) if job.config.temperature == 0.0]
    drafter = local_drafter(graph, "tree", 8)
    first = decode(target, [job for job, _ in greedy], drafter, 8, strategy="tree", target_cache=20_000_000)
    assert first.outputs == [output for _, output in greedy]
    num_passes, read_s = first.engine.totals.num_passes, first.engine.totals.times.prefill_s
    again = decode(target, [job for job, _ in greedy], drafter, engine=first.engine)
    assert again.outputs == first.outputs
    assert again.engine.totals.num_passes == num_passes
    assert again.engine.totals.times.prefill_s == read_s
    assert [each.num_from_target_cache for each in again.sequences] == [len(output) for output in again.outputs]
    assert again.engine.logits_cache.hits >= sum(map(len, again.outputs))


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


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [1.0, 1.5, 2.5])
def test_the_demo_model_samples_the_same_from_flat_distributions(temperature):
    """The vocabulary has 4,096 tokens, without top-p.

    If tokens were sampled by cumulative probabilities, one in twenty of these texts would differ.
    """
    target = TargetModel.load(VerifierConfig(model_name=str(MODEL_FOLDER), device="cpu", num_threads=1))
    prompt = tuple(target.encode("def wrap(self, text):\n"))
    jobs = [
        Job(prompt, GenerationConfig(max_tokens=100, temperature=temperature, seed=seed, speculation="on"))
        for seed in range(64)
    ]
    plain_outputs = decode(target, jobs).outputs
    # About half of the drafted tokens are correct. Drafted tokens do not affect the distributions; wide passes might.
    drafter = ScriptedDrafter(knowing_tree([[*prompt, *output] for output in plain_outputs], 4_096, seed=1))
    outcome = decode(target, jobs, drafter, 8)
    assert outcome.outputs == plain_outputs
    assert sum(sum(each.accepted_by_depth) for each in outcome.sequences) > 500
