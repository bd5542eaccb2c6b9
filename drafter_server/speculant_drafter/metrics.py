"""The sidecar's metrics for Prometheus.

No metric has labels with client-chosen values, such as tenants or sessions, because every value adds a time series.
"""

from __future__ import annotations

from typing import Literal, get_args

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    ProcessCollector,
    disable_created_metrics,
)

from speculant_graph.version import VERSION

_PREFIX = "speculant_drafter_"
STEP_BOUNDS_S = (50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 20e-3, 50e-3)
"""Upper bounds of the response-time histogram, in seconds; the last bucket has no bound."""

SessionEnd = Literal["closed", "idle", "limit", "memory", "diverged"]
"""Reason for the end of a session. A session ends if its client closes it, if it is idle for too long, or if its tokens
contradict the stored tokens. Sessions are also evicted to limit their number or their memory."""

disable_created_metrics()  # type: ignore[no-untyped-call]


class ServerMetrics:
    """Counters since the sidecar's start, and gauges that the sidecar updates before each scrape."""

    def __init__(self) -> None:
        """Make all metrics, with zero counts."""
        self.registry = registry = CollectorRegistry()
        """Registry of all metrics, including process metrics."""

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(_PREFIX + name, text, labels, registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(_PREFIX + name, text, labels, registry=registry)

        ProcessCollector(registry=registry)
        Info(_PREFIX + "build", "Version of speculant-graph.", registry=registry).info({"version": VERSION})
        self.steps = counter("steps", "Steps answered.")
        self.sequences = counter("sequences", "Sequences in the steps answered.")
        self.drafted_nodes = counter("drafted_nodes", "Nodes drafted.")
        self.empty_drafts = counter("empty_drafts", "Sequences that asked for nodes and got none.")
        self.without_neural = counter(
            "without_neural", "Sequences drafted without the neural model that their graph has."
        )
        self.failed_steps = counter("failed_steps", "Steps refused or failed, by status.", "code")
        self.opened_sessions = counter("opened_sessions", "Sessions opened.")
        self.refused_openings = counter("refused_openings", "Sessions that were not opened, by status.", "code")
        self.ended_sessions = counter("ended_sessions", "Sessions ended, by reason.", "reason")
        for reason in get_args(SessionEnd):
            self.ended_sessions.labels(reason)
        self.step_seconds = Histogram(
            _PREFIX + "step_seconds",
            "Time from a step's arrival to its answer, in seconds.",
            buckets=STEP_BOUNDS_S,
            registry=registry,
        )
        self.open_sessions = gauge("open_sessions", "Sessions open now, by graph.", "graph")
        self.graph_generation = gauge(
            "graph_generation", "Generation of the served graph; every reload raises it.", "graph"
        )
        self.session_bytes = gauge("session_bytes", "Memory of all sessions, in bytes.")
        self.learned_tokens = gauge("learned_tokens", "Tokens in the learned store, of all tenants.")
        self.learned_failing = gauge("learned_failing", "1 while learned text can't be written to disk.")
        self.folds = counter("folds", "Folds of learned text that published a graph.")
        self.failed_folds = counter("failed_folds", "Failed folds; their text is unchanged.")
        self.fold_seconds = counter("fold_seconds", "Time of all fold processes, in seconds.")

    def on_fold(self, seconds: float, is_done: bool) -> None:
        """Count a finished fold of learned text, successful or failed; thread-safe."""
        self.fold_seconds.inc(seconds)
        (self.folds if is_done else self.failed_folds).inc()
