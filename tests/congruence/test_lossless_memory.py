"""A thousand requests in one engine: memory stays within its bound, and nothing leaks."""

from __future__ import annotations

import gc
import random

import psutil

from speculant_graph.config import DraftConfig, GenerationConfig, VerifierConfig
from speculant_verifier.engine import Engine, Request
from support.drafters import ScriptedDrafter, chain
from support.lossless import WINDOW
from support.tiny_models import tiny_gpt_oss

BOUND = 1_024
"""Maximum number of tokens in the key-value cache."""
BYTES_PER_TOKEN = 4 * 2 * 2 * 16 * 4
"""Product of layers, 2 for keys and values, heads, head size, and bytes per number."""


def requests(number, rng):
    for index in range(number):
        yield Request(
            index,
            tuple(rng.randrange(250) for _ in range(rng.choice([1, 4, 20, rng.randrange(1, 400)]))),
            GenerationConfig(
                max_tokens=rng.randrange(1, 12),
                temperature=rng.choice([0.0, 1.0]),
                seed=index,
                rule=rng.choice(["follow", "token", "gumbel", "tree-wor"]),
                repetition_penalty=rng.choice([1.0, 1.2]),
                logprobs=rng.choice([None, 2]),
                ignore_end_tokens=True,
            ),
        )


def serve(number, num_warm):
    """Serve overlapping requests, some of them cancelled; return the growth of memory in bytes."""
    rng = random.Random(number)
    model = tiny_gpt_oss(window=WINDOW)
    drafter = ScriptedDrafter(lambda step: chain([rng.randrange(250) for _ in range(step.node_budget)]))
    engine = Engine(
        model,
        drafter,
        VerifierConfig(max_batch_size=8, max_kv_tokens=BOUND, target_cache=400_000, prefix_cache=2_000_000),
        DraftConfig(k=5),
        prefill_chunk=200,
    )
    process, resident = psutil.Process(), 0
    waiting = requests(number, rng)
    num_ended = num_cancelled = 0
    largest = 0
    running = []
    while num_ended + num_cancelled < number:
        for request in [each for _, each in zip(range(rng.randrange(3)), waiting, strict=False)]:
            running.append(engine.add(request))
        for output in engine.step():
            assert output.finish_reason != "error", output.sequence.error
            if output.finish_reason is not None:
                num_ended += 1
                running.remove(output.sequence)
                if num_ended == num_warm:
                    gc.collect()
                    resident = process.memory_info().rss
        if running and rng.random() < 0.02:
            engine.cancel(running.pop(rng.randrange(len(running))))
            num_cancelled += 1
        cache = engine.admission.cache
        assert cache.num_rows * cache.capacity <= BOUND
        assert cache.num_bytes <= BOUND * BYTES_PER_TOKEN
        assert len(drafter.open_sessions) == engine.num_running <= 8
        largest = max(largest, cache.num_bytes)
    assert not running
    assert not engine.has_work
    assert engine.num_running == engine.num_waiting == 0
    assert not drafter.open_sessions
    assert engine.admission.cache.lengths == [0] * engine.admission.cache.num_rows
    assert num_cancelled > 0
    assert largest > BOUND * BYTES_PER_TOKEN // 4, "or the bound bounded nothing"
    gc.collect()
    return process.memory_info().rss - resident


def test_some_requests():
    assert serve(40, 20) < 30_000_000
