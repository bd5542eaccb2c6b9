"""What was counted, as Prometheus text.

No label has values that clients choose (tenants, sessions): every such value would be one more time series.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
        counts: what was counted.
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
        counts, state = self._counts, self._state
        yield InfoMetricFamily(_PREFIX + "build", "Version of speculant-graph.", {"version": VERSION})
        for name, help_text, value in (
            ("steps", "Steps answered.", counts.steps),
            ("sequences", "Sequences in the steps answered.", counts.sequences),
            ("drafted_nodes", "Nodes drafted.", counts.drafted_nodes),
            ("empty_drafts", "Sequences that got no node though they asked for some.", counts.empty_drafts),
            ("opened_sessions", "Sessions opened.", counts.opened_sessions),
        ):
            yield CounterMetricFamily(_PREFIX + name, help_text, value)
        for name, help_text, label, values in (
            ("failed_steps", "Steps refused or failed, by status.", "code", counts.failed_steps),
            ("refused_openings", "Sessions that were not opened, by status.", "code", counts.refused_openings),
            ("ended_sessions", "Sessions ended, by reason.", "reason", counts.ended_sessions),
        ):
            yield _labelled(CounterMetricFamily(_PREFIX + name, help_text, labels=[label]), values)
        for name, help_text, value in (
            ("session_bytes", "Memory of all sessions, in bytes.", state.session_bytes),
            ("learned_tokens", "Tokens in the learned store, of all tenants.", state.learned_tokens),
            ("learned_failing", "1 while what was learned can't be brought to disk.", int(state.is_failing_to_learn)),
        ):
            yield GaugeMetricFamily(_PREFIX + name, help_text, value)
        for name, help_text, by_graph in (
            ("open_sessions", "Sessions open now, by graph.", {name: count for name, _, count in state.graphs}),
            (
                "graph_generation",
                "Generation that is served; it grows with every reload.",
                {name: generation for name, generation, _ in state.graphs},
            ),
        ):
            yield _labelled(GaugeMetricFamily(_PREFIX + name, help_text, labels=["graph"]), by_graph)
        yield HistogramMetricFamily(
            _PREFIX + "step_seconds",
            "Time from a step's arrival to its answer, in seconds.",
            buckets=list(zip([*map(str, STEP_BOUNDS_S), "+Inf"], accumulate(counts.step_buckets), strict=True)),
            sum_value=counts.step_seconds,
        )


def _labelled(
    family: CounterMetricFamily | GaugeMetricFamily, values: Mapping[str, int]
) -> CounterMetricFamily | GaugeMetricFamily:
    for label, value in sorted(dict(values).items()):  # a copy, as others may count meanwhile
        family.add_metric([label], value)
    return family
