"""What is drafted for an engine, for its own Prometheus registry."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

from speculant_graph.engines.sessions import EngineSessions

_BUCKETS = (1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2)


class EngineMetrics:
    """Metrics of one engine's sessions; one in a process."""

    def __init__(self, sessions: EngineSessions) -> None:
        """Register the metrics with prometheus_client's own registry, which engines export."""
        self._sessions = sessions
        self._drafted = Counter("speculant_drafted_tokens", "Tokens that the drafter proposed.")
        self._offered = Counter("speculant_offered_tokens", "Tokens of drafts that the engine was given to verify.")
        self._failed = Counter("speculant_failed_steps", "Batches that got no drafts in time.")
        self._running = Gauge("speculant_sequences", "Sequences that were drafted for in the latest step.")
        self._seconds = Histogram("speculant_draft_seconds", "Time of the drafts for a batch.", buckets=_BUCKETS)
        self._seen = (0, 0, 0)

    def update(self) -> None:
        """Take over what the latest step counted."""
        counts, failed = self._sessions.counts, self._sessions.drafter.statistics.failed_steps
        drafted, offered, failed_before = self._seen
        self._drafted.inc(counts.drafted_tokens - drafted)
        self._offered.inc(counts.offered_tokens - offered)
        self._failed.inc(failed - failed_before)
        self._running.set(counts.running)
        self._seconds.observe(counts.seconds[-1])
        self._seen = counts.drafted_tokens, counts.offered_tokens, failed
