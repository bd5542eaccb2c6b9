"""Recorded outputs, teacher-forced in our decoding loop and in those of transformers, are reproduced exactly."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial

import pytest

from speculant_graph.client import NullDrafter
from speculant_graph.config import DraftConfig, GenerationConfig
from speculant_verifier.bench.decoding import DecodingStatistics, EngineDecoding, interleaved
from speculant_verifier.bench.transformers_decoding import decode_transformers
from speculant_verifier.bench.workload import BenchRequest
from support.drafters import ScriptedDrafter, knowing, knowing_tree
from support.tiny_models import WINDOW

CONFIG = GenerationConfig()
PLAIN = DraftConfig(k=0)
RAGGED = [(1, 30), (2, 9), (WINDOW - 1, 2 * WINDOW), (WINDOW, 1), (3 * WINDOW, 25), (5, 40)]


def requests_of(seed, lengths, alphabet=250):
    generator = random.Random(seed)

    def tokens(count):
        return tuple(generator.randrange(alphabet) for _ in range(count))

    return [BenchRequest(tokens(prompt), output, tokens(output)) for prompt, output in lengths]


def emitted(run):
    return [tuple(row.token_ids) for row in run.rows]


def records(requests):
    return [request.teacher_forced for request in requests]


@pytest.mark.parametrize("rows", [1, 3, 6])
@pytest.mark.parametrize("shape", [knowing, knowing_tree])
def test_our_engine_writes_the_record_whatever_is_drafted(gpt_oss, rows, shape):
    requests = requests_of(rows, RAGGED)
    references = [(*request.prompt, *request.teacher_forced) for request in requests]
    script = shape(references, 0.7, 250) if shape is knowing else shape(references, 250)
    run = EngineDecoding(gpt_oss, ScriptedDrafter(script), DraftConfig(k=6), rows).decode(requests)
    assert emitted(run) == records(requests)
    statistics, num_tokens = DecodingStatistics([run]), sum(request.max_tokens for request in requests)
    assert statistics.num_steps < num_tokens, "drafts were accepted"
    assert statistics.num_tokens == num_tokens == statistics.num_accepted + statistics.num_steps
    assert all(seconds > 0 for seconds in run.phase_s.values())
    assert sum(run.phase_s.values()) == pytest.approx(run.total_s)
    plain = EngineDecoding(gpt_oss, NullDrafter(), PLAIN, rows).decode(requests)
    assert emitted(plain) == records(requests)
    assert DecodingStatistics([plain]).num_steps == num_tokens


@pytest.mark.parametrize("lengths", RAGGED)
def test_transformers_writes_the_record_and_prompt_lookup_profits_from_it(gpt_oss, lengths):
    requests = requests_of(8, [lengths], alphabet=3)  # a small alphabet, for many repetitions
    run = decode_transformers(gpt_oss, requests, CONFIG)
    assert emitted(run) == records(requests)
    assert run.rows[0].num_steps == requests[0].max_tokens
    if lengths[0] > 1:
        run = decode_transformers(gpt_oss, requests, CONFIG, prompt_lookup_num_tokens=10)
        assert emitted(run) == records(requests)
        assert run.rows[0].num_steps < requests[0].max_tokens or requests[0].max_tokens <= 20


def test_without_a_record_the_model_chooses_and_all_ways_agree(gpt_oss):
    forced = requests_of(3, RAGGED)
    requests = [replace(request, teacher_forced=None) for request in forced]
    config = GenerationConfig(ignore_end_tokens=True)
    ways = {
        "plain": EngineDecoding(gpt_oss, NullDrafter(), PLAIN, 1, config).decode,
        "transformers": partial(decode_transformers, gpt_oss, config=config),
    }
    trials = interleaved(ways, requests, 1, lambda *_: None)
    assert trials.is_identical("transformers", "plain")
    assert [tuple(row.token_ids) for row in trials.rows("plain")] != records(forced)
    lookup = decode_transformers(gpt_oss, requests[:1], config, prompt_lookup_num_tokens=10)
    assert lookup.rows[0].token_ids == trials.rows("plain")[0].token_ids
