"""What the sidecar counts of itself, and that as Prometheus text.

Counts are plain integers, so that a step pays next to nothing for them. No label has values that clients choose
(tenants, sessions): every such value would be one more time series.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Literal, get_args

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from speculant_graph.version import VERSION

_PREFIX = "speculant_drafter_"
STEP_BOUNDS_S = (50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 20e-3, 50e-3)
"""Upper bounds of the histogram of answer times, seconds; one more bucket has no bound."""

SessionEnd = Literal["closed", "idle", "limit", "memory", "diverged"]
"""Why a session ended: its client closed it, it was idle for too long, it made space for another one (count or memory),
or its tokens contradicted what was known."""


@dataclass(slots=True)
class ServerCounts:
    """Counters since the start. Only the event loop writes to them; other threads may read."""

    steps: int = 0
    sequences: int = 0
    drafted_nodes: int = 0
    empty_drafts: int = 0
    failed_steps: Counter[str] = field(default_factory=Counter)
    """Steps that were refused or failed, by the name of their status."""
    opened_sessions: int = 0
    refused_openings: Counter[str] = field(default_factory=Counter)
    """Sessions that were not opened, by the name of the status."""
    ended_sessions: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(get_args(SessionEnd), 0)))
    """By :data:`SessionEnd`."""
    step_seconds: float = 0.0
    step_buckets: list[int] = field(default_factory=lambda: [0] * (len(STEP_BOUNDS_S) + 1))

    def observe_step(self, seconds: float, num_sequences: int) -> None:
        """Count a step that was answered.

        Args:
            seconds: from its arrival to its answer.
            num_sequences: sequences of its batch.
        """
        self.steps += 1
        self.sequences += num_sequences
        self.step_seconds += seconds
        self.step_buckets[bisect_left(STEP_BOUNDS_S, seconds)] += 1


@dataclass(frozen=True, slots=True)
class ServerState:
    """What the sidecar holds at one moment."""

    graphs: Sequence[tuple[str, int, int]] = ()
    """Per served graph its name, its generation, and the sessions that draft from it."""
    session_bytes: int = 0
    """Memory of all sessions."""
    learned_tokens: int = 0
    """Tokens of all tenants in the learned store."""
    is_failing_to_learn: bool = False
    """Whether what was learned can't be brought to disk at present."""


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
