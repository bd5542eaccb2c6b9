"""What is drafted for the engines of this process, for prometheus_client's own registry, which engines export."""

from __future__ import annotations

from functools import cache
from threading import Event, Thread

from loguru import logger
from prometheus_client import Counter, Gauge, Histogram

from speculant_graph.engines.sessions import EngineSessions

_INTERVAL_S = 1.0
_IDLE_S = 5.0
"""After so long without a step the engine stands still."""
_BUCKETS = (1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2)


@cache
def _metrics() -> tuple[Counter, Counter, Counter, Gauge, Histogram]:
    """Return the metrics; several engines of a process share them."""
    return (
        Counter("speculant_drafted_tokens", "Tokens that the drafter proposed."),
        Counter("speculant_offered_tokens", "Tokens of drafts that the engine was given to verify."),
        Counter("speculant_failed_steps", "Batches that got no drafts because drafting failed or came too late."),
        Gauge(
            "speculant_sequences", "Sequences that were drafted for in the latest step.", multiprocess_mode="livesum"
        ),
        Histogram("speculant_draft_seconds", "Time of the drafts for a batch.", buckets=_BUCKETS),
    )


class EngineMetrics:
    """Once a second, beside the decoding, brings what the sessions of an engine count to the metrics.

    It ends the sequences of an engine that stands still, too, so that what they accepted is learned.
    """

    def __init__(self, sessions: EngineSessions, *, interval_s: float = _INTERVAL_S, idle_s: float = _IDLE_S) -> None:
        """Begin.

        Args:
            sessions: the engine's.
            interval_s: time between two updates.
            idle_s: after so long without a step its sequences end.

        Raises:
            OSError: the folder of ``PROMETHEUS_MULTIPROC_DIR`` can't be written.
        """
        self._sessions = sessions
        self._metrics = _metrics()
        self._seen = (0, 0, 0, 0)
        self._interval_s, self._idle_s = interval_s, idle_s
        self._is_closed = Event()
        self._thread = Thread(target=self._run, name="speculant", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Take over the last counts, and end."""
        self._is_closed.set()
        self._thread.join()
        self._update()

    def _run(self) -> None:
        while not self._is_closed.wait(self._interval_s):
            try:
                self._sessions.end_idle(self._idle_s)
                self._update()
            except Exception:
                logger.exception("the engine's metrics stand still")
                return

    def _update(self) -> None:
        counts = self._sessions.counts
        failed = counts.failed_steps + self._sessions.drafter.statistics.failed_steps
        totals = counts.steps, counts.drafted_tokens, counts.offered_tokens, failed
        num_steps, *increments = (now - before for now, before in zip(totals, self._seen, strict=True))
        *counters, running, seconds = self._metrics
        for counter, increment in zip(counters, increments, strict=True):
            counter.inc(increment)
        running.set(counts.running)
        for duration in list(counts.seconds)[-num_steps:] if num_steps else ():
            seconds.observe(duration)
        self._seen = totals
