"""What is drafted for the engines of this process, for prometheus_client's own registry, which engines export."""

from __future__ import annotations

import time
from functools import cache

from prometheus_client import Counter, Gauge, Histogram

from speculant_graph.engines.sessions import EngineSessions

_INTERVAL_S = 1.0
_BUCKETS = (1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2)


@cache
def _metrics() -> tuple[Counter, Counter, Counter, Gauge, Histogram]:
    """Return the metrics; several engines of a process share them."""
    return (
        Counter("speculant_drafted_tokens", "Tokens that the drafter proposed."),
        Counter("speculant_offered_tokens", "Tokens of drafts that the engine was given to verify."),
        Counter("speculant_failed_steps", "Batches that got no drafts in time."),
        Gauge(
            "speculant_sequences", "Sequences that were drafted for in the latest step.", multiprocess_mode="livesum"
        ),
        Histogram("speculant_draft_seconds", "Time of the drafts for a batch.", buckets=_BUCKETS),
    )


class EngineMetrics:
    """Brings what the sessions of one engine count to the metrics."""

    def __init__(self, sessions: EngineSessions) -> None:
        """Take the sessions."""
        self._sessions = sessions
        self._seen = (0, 0, 0)
        self._num_steps = 0
        self._updated_s = 0.0

    def update(self, *, at_once: bool = False) -> None:
        """Take over what was counted, once a second: they cost more than a draft."""
        now_s = time.monotonic()
        if now_s - self._updated_s < _INTERVAL_S and not at_once:
            return
        self._updated_s, counts = now_s, self._sessions.counts
        totals = counts.drafted_tokens, counts.offered_tokens, self._sessions.drafter.statistics.failed_steps
        *counters, running, seconds = _metrics()
        for counter, now, before in zip(counters, totals, self._seen, strict=True):
            counter.inc(now - before)
        running.set(counts.running)
        num_new = min(counts.steps - self._num_steps, len(counts.seconds))
        for number in range(-num_new, 0):
            seconds.observe(counts.seconds[number])
        self._num_steps = counts.steps
        self._seen = totals
