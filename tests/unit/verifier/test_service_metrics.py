"""A verifier's metrics for Prometheus, compared with its own counts."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from speculant_graph.client import LocalDrafter, NullDrafter
from speculant_graph.config import DraftConfig, GenerationConfig, ServiceConfig, VerifierConfig
from speculant_graph.version import VERSION
from speculant_verifier.decoder import SpeculativeDecoder
from speculant_verifier.service.metrics import render_metrics
from speculant_verifier.service.requests import Load

PREFIX = "speculant_verifier_"
LOAD = Load(ServiceConfig(), 2)
CONFIG = VerifierConfig(max_batch_size=2, measure_costs=False, num_threads=1, max_kv_tokens=512, target_cache=100_000)
DRAFT = DraftConfig(strategy="tree", k=4)


def told(decoder, requests=None):
    return {
        (sample.name.removeprefix(PREFIX), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(render_metrics(decoder, LOAD, requests or {}).decode())
        for sample in family.samples
    }


def decoder_of(target, drafter):
    return SpeculativeDecoder(target=target, verifier_config=CONFIG, draft_config=DRAFT, drafter=drafter)


@pytest.fixture(scope="module")
def decoder(gpt_oss):
    with decoder_of(gpt_oss, LocalDrafter(None, DRAFT)) as decoder:
        config = GenerationConfig(max_tokens=24, speculation="on", ignore_end_tokens=True)
        decoder.generate([[1, 2, 3] * 6, [4, 5] * 4, [6] * 9], config)
        yield decoder


def test_counters_are_those_of_the_engine(decoder):
    found, totals = told(decoder), decoder.totals
    assert found["build_info", VERSION] == 1
    assert found["tokens_total",] == totals.num_tokens == 3 * 24
    assert found["prompt_tokens_total",] == totals.num_prompt_tokens == 18 + 8 + 9
    assert found["sequences_total", "length"] == 3
    assert found["sequences_total", "cancelled"] == found["sequences_total", "error"] == 0
    assert found["drafted_nodes_total",] == sum(totals.drafted_by_depth) > 0
    assert found["accepted_tokens_total",] == sum(totals.accepted_by_depth) > 0
    for name, counts in (("drafted", totals.drafted_by_depth), ("accepted", totals.accepted_by_depth)):
        for depth, count in enumerate(counts, start=1):
            assert found[f"{name}_by_depth_total", str(depth)] == count
    assert found["passes_total",] == totals.num_passes
    assert found["pass_rows_total",] == totals.num_rows
    # Every row of a pass has a root, and yields one token in addition to the accepted ones.
    assert found["pass_nodes_total",] == found["pass_rows_total",] + found["drafted_nodes_total",]
    assert 0 < found["drafts_total",] == totals.num_drafts <= totals.num_rows
    cache = decoder.engine.logits_cache
    assert found["target_cache_hits_total",] == cache.hits
    assert found["target_cache_evictions_total",] == cache.evicted > 0
    assert 0 < found["target_cache_bytes",] == cache.num_bytes <= 100_000
    # Every token is a pass's own token, an accepted one, or from the cache.
    assert totals.num_tokens == found["pass_rows_total",] + found["accepted_tokens_total",] + cache.hits
    assert found["phase_seconds_total", "forward"] == pytest.approx(totals.times.forward_s)


def test_gauges_show_what_runs(gpt_oss):
    with decoder_of(gpt_oss, NullDrafter()) as decoder:
        assert told(decoder)["kv_reserved_tokens",] == 0
        stream = decoder.stream([[1, 2, 3], [4, 5], [6]], GenerationConfig(max_tokens=30, ignore_end_tokens=True))
        next(stream)
        found = told(decoder)
        assert (found["running_sequences",], found["waiting_sequences",], found["open_sequences",]) == (2, 1, 3)
        assert found["batch_size",] == 2
        assert 0 < found["kv_tokens",] <= found["kv_reserved_tokens",] <= found["kv_limit_tokens",] == 512
        assert found["kv_reserved_tokens",] >= 2 * 33
        stream.close()
        found = told(decoder)
        assert (found["open_sequences",], found["kv_reserved_tokens",], found["kv_tokens",]) == (0, 0, 0)
        assert found["drafter_state", "off"] == 1
        assert found["drafter_state", "ok"] == found["drafter_state", "unavailable"] == 0


def test_no_label_is_a_clients(decoder):
    ours = "version reason phase nodes le depth state api endpoint code source adapter sha256 what"
    allowed = set(ours.split())
    text = render_metrics(decoder, LOAD, {("http", "other", "404"): 1}).decode()
    for family in text_string_to_metric_families(text):
        assert family.documentation
        assert all(sample.labels.keys() <= allowed for sample in family.samples)
