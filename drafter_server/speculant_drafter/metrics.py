"""What was counted, as Prometheus text.

No label has values that clients choose (tenants, sessions): every such value would be one more time series.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from speculant_drafter.counts import STEP_BOUNDS_S, ServerCounts, ServerState
from speculant_graph.version import VERSION

_PREFIX = "speculant_drafter_"


def render_metrics(counts: ServerCounts, state: ServerState) -> bytes:
    """Return counters, gauges and those of the process in Prometheus' text format.

    Args:
        counts: a copy that nobody writes to.
        state: what is held now.
    """
    registry = CollectorRegistry()
    registry.register(_ServerCollector(counts, state))
    ProcessCollector(registry=registry)
    return generate_latest(registry)


class _ServerCollector(Collector):
    def __init__(self, counts: ServerCounts, state: ServerState) -> None:
        self._counts = counts
        self._state = state

    def collect(self) -> Iterator[Metric]:
        yield InfoMetricFamily(_PREFIX + "build", "Version of speculant-graph.", {"version": VERSION})
        yield from self._steps()
        yield from self._sessions()
        yield from self._graphs()

    def _steps(self) -> Iterator[Metric]:
        counts = self._counts
        for name, help_text, value in (
            ("steps", "Steps answered.", counts.steps),
            ("sequences", "Sequences in the steps answered.", counts.sequences),
            ("drafted_nodes", "Nodes drafted.", counts.drafted_nodes),
            ("empty_drafts", "Sequences that got no node though they asked for some.", counts.empty_drafts),
        ):
            yield CounterMetricFamily(_PREFIX + name, help_text, value)
        failed = CounterMetricFamily(_PREFIX + "failed_steps", "Steps refused or failed, by status.", labels=["code"])
        for code, number in sorted(counts.failed_steps.items()):
            failed.add_metric([code], number)
        yield failed
        bounds = [*map(str, STEP_BOUNDS_S), "+Inf"]
        yield HistogramMetricFamily(
            _PREFIX + "step_seconds",
            "Time from a step's arrival to its answer, in seconds.",
            buckets=list(zip(bounds, accumulate(counts.step_buckets), strict=True)),
            sum_value=counts.step_seconds,
        )

    def _sessions(self) -> Iterator[Metric]:
        counts = self._counts
        yield CounterMetricFamily(_PREFIX + "opened_sessions", "Sessions opened.", counts.opened_sessions)
        refused = CounterMetricFamily(
            _PREFIX + "refused_openings", "Sessions that were not opened, by status.", labels=["code"]
        )
        for code, number in sorted(counts.refused_openings.items()):
            refused.add_metric([code], number)
        yield refused
        ended = CounterMetricFamily(_PREFIX + "ended_sessions", "Sessions ended, by reason.", labels=["reason"])
        for reason, number in counts.ended_sessions.items():
            ended.add_metric([reason], number)
        yield ended
        yield GaugeMetricFamily(
            _PREFIX + "session_bytes", "Memory of all sessions, in bytes.", self._state.session_bytes
        )
        yield GaugeMetricFamily(
            _PREFIX + "learned_tokens", "Tokens in the learned store, of all tenants.", self._state.learned_tokens
        )
        yield GaugeMetricFamily(
            _PREFIX + "learned_failing",
            "1 while what was learned can't be brought to disk.",
            int(self._state.is_failing_to_learn),
        )

    def _graphs(self) -> Iterator[Metric]:
        sessions = GaugeMetricFamily(_PREFIX + "open_sessions", "Sessions open now, by graph.", labels=["graph"])
        generation = GaugeMetricFamily(
            _PREFIX + "graph_generation", "Generation that is served; it grows with every reload.", labels=["graph"]
        )
        for graph in self._state.graphs:
            sessions.add_metric([graph.name], graph.open_sessions)
            generation.add_metric([graph.name], graph.generation)
        yield sessions
        yield generation
