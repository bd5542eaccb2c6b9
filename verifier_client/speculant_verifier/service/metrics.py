"""A verifier's metrics as Prometheus text.

No label takes values that clients choose (tenants, graphs, request ids), because every new value would add a time
series.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from speculant_graph.version import VERSION
from speculant_verifier.decoder import SpeculativeDecoder
from speculant_verifier.draft_model.adapters import BASE
from speculant_verifier.draft_model.drafter import HIT_WINDOW
from speculant_verifier.engine.totals import Histogram
from speculant_verifier.service.requests import Load

RequestKey = tuple[str, str, str]
"""Key by which ended requests are counted: "http" or "grpc", endpoint or method, and status."""

_PREFIX = "speculant_verifier_"
_DEEPEST = 32
"""Greatest draft depth that has its own count of nodes; deeper nodes are added to this count."""
_PHASES = ("prefill", "draft", "forward", "verify", "commit", "total")

_Numbers = Callable[[SpeculativeDecoder], Iterable[tuple[str, float]]]

_COUNTERS = (
    ("prompt_tokens", "totals.num_prompt_tokens", "Tokens of prompts."),
    ("prefix_cache_tokens", "totals.num_from_prefix_cache", "Prompt tokens that an earlier sequence had read."),
    ("tokens", "totals.num_tokens", "Tokens emitted."),
    ("passes", "totals.num_passes", "Forward passes over drafts."),
    ("pass_rows", "totals.num_rows", "Sequences in those passes, counted once per pass."),
    ("pass_nodes", "totals.num_nodes", "Nodes in those passes: the drafted ones, and one per sequence."),
    ("drafts", "totals.num_drafts", "Verified drafts, at most one per sequence and pass."),
    ("drafted_nodes", "totals.drafted_by_depth", "Drafted nodes that were verified."),
    ("accepted_tokens", "totals.accepted_by_depth", "Drafted tokens that were emitted."),
    ("target_cache_hits", "target_cache.hits", "Tokens emitted from the target cache, without a pass."),
    ("target_cache_evictions", "target_cache.evicted", "Rows of the target cache that were evicted."),
    ("drafter_steps", "drafter.steps", "Steps for which drafts were requested."),
    ("drafter_failed_steps", "drafter.failed_steps", "Steps without an answer in time, including those not sent."),
    ("drafter_skipped_steps", "drafter.skipped_steps", "Steps not sent because the drafter was known to be down."),
    ("drafter_late_answers", "drafter.late_answers", "Answers that arrived after their step."),
    ("drafter_reopened_sessions", "drafter.reopened_sessions", "Sessions reopened in the same or another sidecar."),
    ("steps_without_drafter", "totals.num_steps_without_drafter", "Steps of sequences for which no draft arrived."),
    ("draft_model_passes", "draft_model.num_passes", "Passes of the draft model; 0 without one."),
    ("draft_model_seconds", "draft_model.passes_s", "Time of the draft model's passes, in seconds."),
    ("offload_seconds", "times.stall_s", "Time that passes waited for weights, in seconds."),
    ("offload_bytes", "offload.num_bytes", "Bytes of weights read from the disk, or copied from host memory to a GPU."),
    ("offload_experts", "offload.num_wanted", "Experts that passes needed, if the model's experts are streamed."),
    ("offload_experts_found", "offload.num_found", "Needed experts that were already in memory."),
)  # fmt: skip
"""For each counter: its name, the path of its number (see :func:`_sources`), and its description."""
_GAUGES = (
    ("running_sequences", "engine.num_running", "Sequences in the batch."),
    ("waiting_sequences", "engine.num_waiting", "Sequences waiting for a slot in the batch."),
    ("batch_size", "settings.max_batch_size", "Most sequences in the batch."),
    ("kv_tokens", "engine.num_kv_tokens", "Tokens whose keys and values are cached."),
    ("kv_reserved_tokens", "engine.num_reserved_kv_tokens",
     "Tokens whose keys and values the running sequences may need."),
    ("kv_limit_tokens", "admission.max_tokens", "Limit of reserved tokens; requests wait when it is reached."),
    ("kv_bytes", "engine.num_kv_bytes", "Memory of keys and values, free rows included, in bytes."),
    ("prefix_cache_bytes", "prefix_cache.num_bytes", "Memory of the prefix cache, in bytes."),
    ("target_cache_bytes", "target_cache.num_bytes", "Memory of the target cache, in bytes."),
    ("drafter_paused", "drafter.num_paused", "Sidecars to which requests pause after failures."),
    ("draft_model_judged_tokens", "draft_model.num_judged",
     f"Latest tokens by which the current adapter is judged, at most {HIT_WINDOW}; every swap resets it."),
    ("draft_model_acceptance", "draft_model.acceptance",
     f"Share of these tokens, at most {HIT_WINDOW}, that it predicted; 0 if there are none."),
    ("memory_reductions_in_force", "totals.num_reductions_in_force", "Reductions that have not been taken back."),
)  # fmt: skip
_LABELLED_COUNTERS: tuple[tuple[str, str, str, _Numbers], ...] = (
    ("sequences", "Sequences that ended, by reason.", "reason",
     lambda it: [*it.totals.num_ended.items(), ("cancelled", it.totals.num_cancelled)]),
    ("drafted_by_depth", "Nodes verified at a depth of the draft.", "depth",
     lambda it: _by_depth(it.totals.drafted_by_depth)),
    ("accepted_by_depth", "Nodes accepted at a depth of the draft.", "depth",
     lambda it: _by_depth(it.totals.accepted_by_depth)),
    ("accepted_by_source", "Drafted tokens that were emitted, by source, if there is a draft model.",
     "source", lambda it: it.totals.accepted_by_source.items()),
    ("phase_seconds", "Time of the engine, by phase.", "phase",
     lambda it: [(phase, getattr(it.totals.times, f"{phase}_s")) for phase in _PHASES]),
    ("memory_reductions", "Reductions made because memory was short, by what was reduced.", "what",
     lambda it: it.totals.num_reductions.items()),
)  # fmt: skip
_HISTOGRAMS: tuple[tuple[str, str, Callable[[SpeculativeDecoder], Histogram]], ...] = (
    ("queue_seconds", "Time until a sequence got its slot.", lambda it: it.totals.queue_times),
    ("first_token_seconds", "Time from arrival to the first token.", lambda it: it.totals.first_token_times),
    ("token_seconds", "Time between tokens; the tokens of a step share it.", lambda it: it.totals.token_times),
    ("request_seconds", "Time from arrival to the end.", lambda it: it.totals.request_times),
    ("draft_seconds", "Time until the drafts of a step arrived.", lambda it: it.totals.draft_times),
    ("pass_seconds", "Time of forward passes over drafts.", lambda it: it.totals.pass_times),
)


def render_metrics(decoder: SpeculativeDecoder | None, load: Load, requests: Mapping[RequestKey, int]) -> bytes:
    """Return the metrics of the verifier and its process in Prometheus' text format.

    Args:
        decoder: the decoder; None while the model is loading.
        load: the running and waiting sequences of the service.
        requests: number of ended requests by key.
    """
    registry = CollectorRegistry()
    registry.register(_VerifierCollector(decoder, load, requests))
    ProcessCollector(registry=registry)
    return generate_latest(registry)


class _VerifierCollector(Collector):
    def __init__(self, decoder: SpeculativeDecoder | None, load: Load, requests: Mapping[RequestKey, int]) -> None:
        self._decoder, self._load, self._requests = decoder, load, requests

    def collect(self) -> Iterator[Metric]:
        decoder = self._decoder
        yield InfoMetricFamily(_PREFIX + "build", "Version of speculant-graph.", {"version": VERSION})
        requests = CounterMetricFamily(
            _PREFIX + "requests",
            "Ended requests, by API (http, grpc), endpoint or method, and status.",
            labels=["api", "endpoint", "code"],
        )
        for labels, count in sorted(self._requests.items()):
            requests.add_metric(labels, count)
        yield requests
        num_open = 0 if decoder is None else decoder.num_sequences
        yield _gauge("open_sequences", "Sequences of requests, running or waiting.", num_open)
        yield _counter("refused_requests", "Requests refused for lack of capacity.", self._load.num_refused)
        if decoder is None:
            return
        sources = _sources(decoder)
        yield from (_counter(name, text, _number(sources, path)) for name, path, text in _COUNTERS)
        yield from (_gauge(name, text, _number(sources, path)) for name, path, text in _GAUGES)
        for name, text, label, read_all in _LABELLED_COUNTERS:
            counter = CounterMetricFamily(_PREFIX + name, text, labels=[label])
            for value, amount in read_all(decoder):
                counter.add_metric([value], amount)
            yield counter
        for name, text, read_times in _HISTOGRAMS:
            times = read_times(decoder)
            yield HistogramMetricFamily(_PREFIX + name, text, buckets=_buckets(times), sum_value=times.total)
        state = GaugeMetricFamily(_PREFIX + "drafter_state", "1 for the drafter's current state.", labels=["state"])
        for each in ("ok", "unavailable", "off"):
            state.add_metric([each], int(decoder.drafter.state == each))
        yield state
        adapter = BASE if decoder.adapters is None else decoder.adapters.state.present
        drafts = {"adapter": adapter.name, "sha256": adapter.digest}
        yield InfoMetricFamily(_PREFIX + "draft_model", "The draft model's adapter; empty: none.", drafts)


def _sources(decoder: SpeculativeDecoder) -> dict[str, object]:
    """Return the objects from which metrics are read, by the first word of the metrics' paths."""
    return {
        "engine": decoder.engine,
        "admission": decoder.engine.admission,
        "prefix_cache": decoder.engine.prefixes,
        "settings": decoder.verifier_config,
        "totals": decoder.totals,
        "times": decoder.totals.times,
        "target_cache": decoder.engine.logits_cache,
        "drafter": decoder.drafter.statistics,
        "draft_model": None if decoder.adapters is None else decoder.adapters.state,
        "offload": decoder.target.offload,
    }


def _number(sources: Mapping[str, object], path: str) -> float:
    """Return the number at a path, or the sum of the list at a path; 0 if the object or the number is missing."""
    source, _, name = path.partition(".")
    value = 0 if sources[source] is None else getattr(sources[source], name)
    return float(sum(value) if isinstance(value, list) else value or 0)


def _by_depth(counts: list[int]) -> list[tuple[str, float]]:
    counted = counts[: _DEEPEST - 1] + [sum(counts[_DEEPEST - 1 :])] * (len(counts) >= _DEEPEST)
    return [(str(depth), count) for depth, count in enumerate(counted, start=1)]


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(_PREFIX + name, text, value)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(_PREFIX + name, text, value)


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    bounds = [*map(str, histogram.bounds), "+Inf"]
    return [(bound, float(count)) for bound, count in zip(bounds, accumulate(histogram.buckets), strict=True)]
