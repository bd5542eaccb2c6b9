"""Statistics of responses that come from the target cache, wholly or partly, and of responses that must not."""

from __future__ import annotations

import pytest

from speculant_graph.config import GenerationConfig
from speculant_verifier.cli.console import RunMeter
from support.http_api import tiny_decoder

PROMPT = [1, 2, 3] * 6
CONFIG = GenerationConfig(max_tokens=24, ignore_end_tokens=True, speculation="on")


@pytest.fixture
def decoder():
    with tiny_decoder(strategy="tree", target_cache=1_000_000) as decoder:
        yield decoder


def measured(decoder, config):
    meter = RunMeter(decoder)
    [result] = decoder.generate([PROMPT], config)
    return result, meter.line()


def test_an_answer_without_a_pass_has_no_mean(decoder):
    first, _ = measured(decoder, CONFIG)
    again, run = measured(decoder, CONFIG)
    assert again.token_ids == first.token_ids
    assert (again.num_steps, again.num_drafts, again.num_from_target_cache) == (0, 0, 24)
    assert again.mean_accepted_tokens is None
    assert (again.tree_hit_rate, again.target_cache_hit_rate) == (0.0, 1.0)
    assert run.startswith("24 tokens, ")
    assert "24 from the target cache" in run
    assert "per step" not in run


def test_tokens_of_the_cache_are_left_out_of_the_mean(decoder):
    measured(decoder, CONFIG)
    longer, run = measured(decoder, CONFIG.model_copy(update={"max_tokens": 60}))
    assert longer.num_from_target_cache >= 24
    passed = len(longer.token_ids) - longer.num_from_target_cache
    assert 0 < longer.num_drafts <= longer.num_steps < passed, "or drafts were not accepted"
    assert longer.mean_accepted_tokens == pytest.approx(passed / longer.num_steps)
    assert longer.num_from_tree == longer.num_accepted == passed - longer.num_steps
    assert longer.tree_hit_rate + longer.target_cache_hit_rate == pytest.approx(1 - longer.num_steps / 60)
    assert f"{longer.mean_accepted_tokens:.2f} per step" in run


def test_speculation_off_is_a_baseline(decoder):
    """It neither reads nor writes the cache, whatever the cache contains."""
    first, _ = measured(decoder, CONFIG)
    cache = decoder.engine.logits_cache
    before = (cache.hits, cache.evicted, len(cache))
    plain, run = measured(decoder, CONFIG.model_copy(update={"speculation": "off"}))
    assert plain.token_ids == first.token_ids
    assert (plain.num_steps, plain.num_from_target_cache, plain.mean_accepted_tokens) == (24, 0, 1.0)
    assert (plain.tree_hit_rate, plain.target_cache_hit_rate, plain.num_drafts) == (0.0, 0.0, 0)
    assert "1.00 per step" in run
    assert (cache.hits, cache.evicted, len(cache)) == before
    fresh = CONFIG.model_copy(update={"speculation": "off", "logit_bias": {5: 3.0}})
    assert measured(decoder, fresh)[0].num_steps == 24
    assert (cache.hits, cache.evicted, len(cache)) == before, "nothing of it is kept"
