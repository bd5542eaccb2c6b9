"""Prompts that share a prefix with finished ones give the same token ids, with fewer tokens read."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

import pytest

from speculant_graph.config import DraftConfig, GenerationConfig, VerifierConfig
from speculant_graph.types import SessionOptions
from speculant_verifier.engine import Engine, Request
from speculant_verifier.model import PREFILL_CHUNK
from support.drafters import ScriptedDrafter, chain
from support.lossless import WINDOW, Job, alone
from support.tiny_models import tiny_gpt_oss, tiny_model


@cache
def target_of(family):
    return tiny_gpt_oss(window=WINDOW) if family == "gpt_oss" else tiny_model(family)


def engine_of(target, rng, prefill_chunk=PREFILL_CHUNK, **options):
    drafter = ScriptedDrafter(lambda step: chain([rng.randrange(250) for _ in range(step.node_budget)]))
    config = VerifierConfig(**{"max_batch_size": 3} | options)
    return Engine(target, drafter, config, DraftConfig(k=5), prefill_chunk=prefill_chunk)


def ended(engine, requests):
    """Decode requests together; return their sequences."""
    sequences = [engine.add(request) for request in requests]
    while engine.has_work:
        for output in engine.step():
            assert output.finish_reason != "error", output.sequence.error
    return sequences


def request(prompt, tenant=None, **options):
    settings = GenerationConfig(ignore_end_tokens=True, speculation="on", **{"max_tokens": 10} | options)
    return Request(0, tuple(prompt), settings, session=None if tenant is None else SessionOptions(tenant=tenant))


def tokens(rng, number):
    return tuple(rng.randrange(250) for _ in range(number))


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("gpt_oss", {}), ("gpt_oss", {"prefill_chunk": 50}), ("gpt_oss", {"max_batch_size": 1}),
        ("llama", {"max_batch_size": 1}), ("qwen3", {"prefill_chunk": 50}),
    ],
    ids=str,
)  # fmt: skip
def test_conversations(family, options):
    """Several conversations run at once, turn by turn; histories may drop an output, as some templates do."""
    rng = random.Random(3)
    target = target_of(family)
    engine = engine_of(target, rng, **options)
    system = tokens(rng, 150)
    histories = [(*system, *tokens(rng, 40)) for _ in range(3)]
    found = []
    for turn in range(4):
        jobs = [request(prompt, seed=turn, temperature=0.8) for prompt in histories]
        sequences = ended(engine, jobs)
        for job, sequence in zip(jobs, sequences, strict=True):
            assert sequence.output == alone(target, Job(job.prompt, job.config))
            found.append(sequence.num_from_prefix_cache)
        histories = [
            (*prompt, *(sequence.output if rng.random() < 0.5 else ()), *tokens(rng, rng.randrange(1, 60)))
            for prompt, sequence in zip(histories, sequences, strict=True)
        ]
    assert all(number >= 180 for number in found[3:]), "all but the first turns go on where their last one ended"
    fresh = request((*system, *tokens(rng, 50)))
    again = request((*system, *tokens(rng, 50)))
    assert ended(engine, [fresh])[0].output == alone(target, Job(fresh.prompt, fresh.config))
    sequence = ended(engine, [again])[0]
    assert sequence.output == alone(target, Job(again.prompt, again.config))
    assert sequence.num_from_prefix_cache >= 150, "what the first of them parted from was copied then"


@pytest.mark.parametrize("chunk", [PREFILL_CHUNK, 50])
@pytest.mark.parametrize("family", ["gpt_oss", "llama", "mistral"])
def test_the_second_session_finds_what_it_shares(family, chunk):
    """Both sessions share instructions and tools; all later tokens differ."""
    rng = random.Random(family)
    target = target_of(family)
    engine = engine_of(target, rng, prefill_chunk=chunk)
    instructions, others = tokens(rng, 150), tokens(rng, 170)
    counts = []
    for head in (instructions, instructions, instructions, others, others):
        job = replace(request((*head, 251 + len(counts), *tokens(rng, 40))), shared_length=len(head))
        [sequence] = ended(engine, [job])
        assert sequence.output == alone(target, Job(job.prompt, job.config))
        counts.append(sequence.num_from_prefix_cache)
    assert counts == [0, 150, 150, 0, 170]


@pytest.mark.parametrize("family", ["gpt_oss", "llama"])
def test_random_company(family):
    """Prefixes, lengths and cancellations are random, and the cache is too small for all."""
    rng = random.Random(family)
    target = target_of(family)
    engine = engine_of(target, rng, prefix_cache=300_000, max_kv_tokens=2_400, prefill_chunk=90)
    trunk = tokens(rng, 400)
    hits = 0
    for _ in range(10):
        jobs = [
            request(
                (*trunk[: rng.randrange(380)], *tokens(rng, rng.randrange(1, 100))), max_tokens=rng.randrange(1, 12)
            )
            for _ in range(rng.randrange(1, 4))
        ]
        cancelled = engine.add(request((*trunk[: rng.randrange(400)], 7)))
        for _ in range(rng.randrange(6)):
            engine.step()
        engine.cancel(cancelled)
        for job, sequence in zip(jobs, ended(engine, jobs), strict=True):
            assert sequence.output == alone(target, Job(job.prompt, job.config))
            hits += sequence.num_from_prefix_cache > 0
        assert engine.prefixes.num_bytes <= 300_000
    assert hits > 5, "or nothing was tested"


def test_tenants_are_apart():
    rng = random.Random(1)
    engine = engine_of(target_of("llama"), rng)
    prompt = tokens(rng, 200)
    counts = [
        ended(engine, [request(prompt, tenant)])[0].num_from_prefix_cache for tenant in ("a", "b", None, "a", "b", None)
    ]
    assert counts == [0, 0, 0, 199, 199, 199]


def test_what_is_in_memory():
    rng = random.Random(1)
    target = target_of("gpt_oss")
    prompt = tokens(rng, 200)
    for most in (0, 1_000):  # 1,000 bytes are too few for a single prompt
        engine = engine_of(target, rng, prefix_cache=most)
        assert [ended(engine, [request(prompt)])[0].num_from_prefix_cache for _ in range(2)] == [0, 0]
        assert engine.prefixes.num_bytes == 0
    engine = engine_of(target, rng)
    ended(engine, [request(prompt)])
    once = engine.prefixes.num_bytes
    ended(engine, [request(prompt)])
    assert engine.prefixes.num_bytes == once, "what is known is not kept twice"
    engine.prefixes.clear()
    assert engine.prefixes.num_bytes == 0
    assert [ended(engine, [request(prompt)])[0].num_from_prefix_cache for _ in range(2)] == [0, 199]


def test_a_failed_sequence_leaves_nothing():
    """Its keys and values may be corrupt."""
    rng = random.Random(1)
    engine = engine_of(target_of("llama"), rng)

    def broken(token_ids):
        raise ValueError("no")

    sequence = engine.add(replace(request(tokens(rng, 100)), stop_check=broken))
    reasons = [output.finish_reason for _ in range(9) for output in engine.step()]
    assert sequence.error
    assert reasons == ["error"]
    assert engine.prefixes.num_bytes == 0
