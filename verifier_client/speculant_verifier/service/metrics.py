"""What a verifier counted, as Prometheus text.

No label has values that clients choose (tenants, graphs, request ids): every such value would be one more time series.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from speculant_graph.types import DrafterState
from speculant_graph.version import VERSION
from speculant_verifier.decoder import SpeculativeDecoder
from speculant_verifier.draft_model.adapters import BASE
from speculant_verifier.draft_model.drafter import HIT_WINDOW
from speculant_verifier.engine.totals import NODE_BOUNDS, Histogram
from speculant_verifier.load import Load
from speculant_verifier.offload import OffloadStatistics

RequestKey = tuple[str, str, str]
"""Of requests that are over: "http" or "grpc", endpoint or method, and status."""

_PREFIX = "speculant_verifier_"
_DEEPEST = 32
"""Acceptance is told by depth up to this one; deeper nodes count as of it."""
_STATES: tuple[DrafterState, ...] = ("ok", "unavailable", "off")


def render_metrics(decoder: SpeculativeDecoder | None, load: Load, requests: Mapping[RequestKey, int]) -> bytes:
    """Return counters, gauges and those of the process in Prometheus' text format.

    Args:
        decoder: what decodes; None while the model is being loaded.
        load: what is under way.
        requests: how many are over, by what they were.
    """
    registry = CollectorRegistry()
    registry.register(_VerifierCollector(decoder, load, requests))
    ProcessCollector(registry=registry)
    return generate_latest(registry)


class _VerifierCollector(Collector):
    def __init__(self, decoder: SpeculativeDecoder | None, load: Load, requests: Mapping[RequestKey, int]) -> None:
        self._decoder, self._load, self._requests_by_status = decoder, load, requests

    def collect(self) -> Iterator[Metric]:
        yield InfoMetricFamily(_PREFIX + "build", "Version of speculant-graph.", {"version": VERSION})
        requests = CounterMetricFamily(
            _PREFIX + "requests",
            "Requests that are over, by API (http, grpc), endpoint or method, and status.",
            labels=["api", "endpoint", "code"],
        )
        for labels, number in sorted(self._requests_by_status.items()):
            requests.add_metric(labels, number)
        yield requests
        num_open = 0 if self._decoder is None else self._decoder.num_sequences
        yield _gauge("open_sequences", "Sequences of requests that are decoded or wait.", num_open)
        yield _counter("refused_requests", "Requests refused for want of room.", self._load.num_refused)
        if self._decoder is not None:
            yield from self._requests(self._decoder)
            yield from self._speculation(self._decoder)
            yield from self._drafter(self._decoder)
            yield from self._draft_model(self._decoder)
            yield from self._offload(self._decoder)

    def _requests(self, decoder: SpeculativeDecoder) -> Iterator[Metric]:
        totals = decoder.totals
        yield _gauge("running_sequences", "Sequences in the batch.", decoder.num_running)
        yield _gauge("waiting_sequences", "Sequences that wait for a place in the batch.", decoder.num_waiting)
        yield _gauge("batch_size", "Most sequences in the batch.", decoder.verifier_config.max_batch_size)
        yield _gauge("kv_tokens", "Tokens that keys and values are kept of.", decoder.num_kv_tokens)
        reserved = "Tokens that the running sequences may come to need keys and values of."
        yield _gauge("kv_reserved_tokens", reserved, decoder.num_reserved_kv_tokens)
        yield _gauge("kv_limit_tokens", "Bound of these; requests wait at it.", decoder.max_kv_tokens)
        yield _gauge("kv_bytes", "Memory of keys and values, free rows included, in bytes.", decoder.num_kv_bytes)
        ended = CounterMetricFamily(_PREFIX + "sequences", "Sequences that ended, by reason.", labels=["reason"])
        for reason, number in totals.num_ended.items():
            ended.add_metric([reason], number)
        ended.add_metric(["cancelled"], totals.num_cancelled)
        yield ended
        yield _counter("prompt_tokens", "Tokens of prompts.", totals.num_prompt_tokens)
        kept = "Those of them that an earlier sequence had read."
        yield _counter("prefix_cache_tokens", kept, totals.num_from_prefix_cache)
        yield _gauge("prefix_cache_bytes", "Memory of the prefix cache, in bytes.", decoder.num_prefix_bytes)
        yield _counter("tokens", "Tokens emitted.", totals.num_tokens)
        yield _histogram("queue_seconds", "Time until a sequence got its place.", totals.queue_times)
        yield _histogram("first_token_seconds", "Time from arrival to the first token.", totals.first_token_times)
        yield _histogram("token_seconds", "Time between tokens; those of a step share it.", totals.token_times)
        yield _histogram("request_seconds", "Time from arrival to the end.", totals.request_times)

    def _speculation(self, decoder: SpeculativeDecoder) -> Iterator[Metric]:
        totals = decoder.totals
        for name, help_text, value in (
            ("passes", "Forward passes over drafts.", totals.num_passes),
            ("pass_rows", "Sequences in those passes, one for each pass that it is in.", totals.num_rows),
            ("pass_nodes", "Nodes in those passes: drafted ones, and one for each sequence.", totals.num_nodes),
            ("drafts", "Drafts that were verified, one for each sequence of a pass that had one.", totals.num_drafts),
            ("drafted_nodes", "Drafted nodes that were verified.", sum(totals.drafted_by_depth)),
            ("accepted_tokens", "Drafted tokens that were emitted.", sum(totals.accepted_by_depth)),
        ):
            yield _counter(name, help_text, value)
        cache = decoder.target_cache_statistics
        yield _counter("target_cache_hits", "Tokens without a pass, from the target cache.", cache.hits)
        yield _counter("target_cache_evictions", "Rows of the target cache that made room for others.", cache.evicted)
        yield _gauge("target_cache_bytes", "Memory of the target cache, in bytes.", cache.num_bytes)
        yield _by_depth("drafted_by_depth", "Nodes verified at a depth of the draft.", totals.drafted_by_depth)
        yield _by_depth("accepted_by_depth", "Nodes accepted at a depth of the draft.", totals.accepted_by_depth)
        sources = CounterMetricFamily(
            _PREFIX + "accepted_by_source",
            "Drafted tokens that were emitted, by what proposed them, where there is a draft model.",
            labels=["source"],
        )
        for source, number in totals.accepted_by_source.items():
            sources.add_metric([source], number)
        yield sources
        phases = CounterMetricFamily(_PREFIX + "phase_seconds", "Time of the engine, by phase.", labels=["phase"])
        for phase in ("prefill", "draft", "forward", "verify", "commit", "total"):
            phases.add_metric([phase], getattr(totals, f"{phase}_s"))
        yield phases
        recent = totals.recent
        requests = "Latest finished requests with drafts, which the next two are of."
        yield _gauge("recent_requests", requests, recent.num_requests)
        yield _gauge("recent_tokens_per_pass", "Their tokens per pass; 0 before any.", recent.tokens_per_pass or 0)
        yield _gauge("recent_drafted_share", "Share of their tokens that was drafted.", recent.drafted_share)
        yield _histogram("draft_seconds", "Time until the drafts of a step were there.", totals.draft_times)
        passes = HistogramMetricFamily(
            _PREFIX + "pass_seconds", "Time of forward passes, by the most nodes of any sequence.", labels=["nodes"]
        )
        for histogram, bound in zip(totals.pass_times, (*map(str, NODE_BOUNDS), "more"), strict=True):
            passes.add_metric([bound], _buckets(histogram), histogram.total)
        yield passes

    def _drafter(self, decoder: SpeculativeDecoder) -> Iterator[Metric]:
        drafter, statistics = decoder.drafter, decoder.drafter.statistics
        state = GaugeMetricFamily(_PREFIX + "drafter_state", "1 for the drafter's state.", labels=["state"])
        for each in _STATES:
            state.add_metric([each], int(drafter.state == each))
        yield state
        yield _gauge("drafter_replicas", "Sidecars that are known; 0 without any.", statistics.replicas)
        paused = "Sidecars that are not asked now, as they failed: their breakers are open."
        yield _gauge("drafter_paused_replicas", paused, statistics.paused_replicas)
        for name, help_text, value in (
            ("drafter_steps", "Steps that drafts were asked for.", statistics.steps),
            ("drafter_failed_steps", "Steps without an answer in time, also those not sent.", statistics.failed_steps),
            ("drafter_skipped_steps", "Steps not sent as the drafter was known to be down.", statistics.skipped_steps),
            ("drafter_late_answers", "Answers that came after their step.", statistics.late_answers),
            ("drafter_reopened_sessions", "Sessions that a sidecar had lost.", statistics.reopened_sessions),
            ("drafter_failovers", "Sessions that moved to another replica.", statistics.failovers),
            ("steps_without_drafter", "Sequences' steps without a draft, as none came.",
             decoder.totals.num_steps_without_drafter),
        ):  # fmt: skip
            yield _counter(name, help_text, value)

    def _draft_model(self, decoder: SpeculativeDecoder) -> Iterator[Metric]:
        state = None if decoder.adapters is None else decoder.adapters.state
        passes, seconds = (state.num_passes, state.passes_s) if state else (0, 0.0)
        yield _counter("draft_model_passes", "Passes of the draft model; 0 without one.", passes)
        yield _counter("draft_model_seconds", "Time of these passes, in seconds.", seconds)
        judged = "Latest tokens that say how good the present adapter is; it begins again with every swap."
        yield _gauge("draft_model_judged_tokens", f"{judged} At most {HIT_WINDOW}.", state.num_judged if state else 0)
        right = f"Share of these tokens, at most {HIT_WINDOW}, that it was right about; 0 before any."
        yield _gauge("draft_model_acceptance", right, state.acceptance or 0 if state else 0)
        rollbacks = "Adapters taken back by the verifier itself, as they were worse than what was before."
        yield _counter("draft_model_rollbacks", rollbacks, state.num_rollbacks if state else 0)
        adapter = state.present if state else BASE
        labels = {"adapter": adapter.name, "sha256": adapter.digest}
        yield InfoMetricFamily(_PREFIX + "draft_model", "The draft model's adapter; empty: none.", labels)

    def _offload(self, decoder: SpeculativeDecoder) -> Iterator[Metric]:
        offload = decoder.target.offload
        statistics = OffloadStatistics() if offload is None else offload.statistics
        yield _counter("offload_seconds", "Time that passes waited for weights, in seconds.", statistics.stall_s)
        yield _counter("offload_bytes", "Bytes of weights read from the disk.", statistics.num_bytes)
        wanted = "Experts that passes wanted, of a model whose experts are streamed."
        yield _counter("offload_experts", wanted, statistics.num_wanted)
        yield _counter("offload_experts_found", "Those of them that were in memory.", statistics.num_found)
        reductions = CounterMetricFamily(
            _PREFIX + "memory_reductions", "What was reduced as memory was short, and how often.", labels=["what"]
        )
        for what, number in decoder.totals.num_reductions.items():
            reductions.add_metric([what], number)
        yield reductions
        in_force = "Reductions that have not been taken back."
        yield _gauge("memory_reductions_in_force", in_force, decoder.totals.num_reductions_in_force)


def _counter(name: str, help_text: str, value: float) -> Metric:
    return CounterMetricFamily(_PREFIX + name, help_text, value)


def _gauge(name: str, help_text: str, value: float) -> Metric:
    return GaugeMetricFamily(_PREFIX + name, help_text, value)


def _histogram(name: str, help_text: str, histogram: Histogram) -> Metric:
    return HistogramMetricFamily(_PREFIX + name, help_text, buckets=_buckets(histogram), sum_value=histogram.total)


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    bounds = [*map(str, histogram.bounds), "+Inf"]
    return [(bound, float(count)) for bound, count in zip(bounds, accumulate(histogram.buckets), strict=True)]


def _by_depth(name: str, help_text: str, counts: list[int]) -> Metric:
    metric = CounterMetricFamily(_PREFIX + name, help_text, labels=["depth"])
    shown = counts[: _DEEPEST - 1] + [sum(counts[_DEEPEST - 1 :])] * (len(counts) >= _DEEPEST)
    for depth, count in enumerate(shown, start=1):
        metric.add_metric([str(depth)], count)
    return metric
