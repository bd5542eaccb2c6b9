"""A circuit breaker that stops requests to a failed drafter, so that steps don't wait until their deadline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from speculant_graph.errors import (
    AccessError,
    DrafterUnavailableError,
    DraftRequestError,
    OverloadError,
    SpeculantError,
    TokenizerMismatchError,
)

PAUSE_S = 0.05
"""Seconds between two probes of a drafter that is down; also the wait after a refusal without a delay."""
_FAILURES_BEFORE_PAUSE = 3
_PROBE_TIMEOUT_S = 0.1
SILENT = DrafterUnavailableError("no answer to a probe either")
"""The error for a drafter that is down and did not answer a probe in time."""


def is_refusal(error: SpeculantError) -> bool:
    """Return whether the drafter refused a request; any other error means that the drafter did not answer."""
    return isinstance(error, DraftRequestError | TokenizerMismatchError | AccessError | OverloadError)


def retry_delay_s(refusal: SpeculantError) -> float:
    """Return the seconds to wait before a refused request is repeated."""
    return (refusal.retry_delay_s if isinstance(refusal, OverloadError) else 0.0) or PAUSE_S


class Breaker:
    """A breaker that opens after several consecutive failures, and closes when the drafter answers a probe.

    Steps send the probes, but do not wait for the answers. The start and the end of an outage are each reported once.
    """

    def __init__(self, address: str, report: Callable[[Literal["INFO", "WARNING"], str], None]) -> None:
        """Make a closed breaker.

        Args:
            address: the drafter's address, for messages.
            report: writes a log line.
        """
        self.is_down = False
        """Whether the breaker is open, so that steps must not use the drafter."""
        self.retry_after_s = 0.0
        """Time before which the drafter gets no requests, because it refused an earlier one."""
        self._address, self._report = address, report
        self._num_failures = 0
        self._last_failure_s = self._last_probe_s = float("-inf")
        self._is_probing = self._is_reported = False
        self._unexplained = ""

    def is_resting(self, now_s: float) -> bool:
        """Return whether requests to the drafter are suspended."""
        return self.is_down or now_s < self.retry_after_s

    def record_success(self) -> None:
        """Record that the drafter answered a step or a session opening in time."""
        self._num_failures = 0
        self._unexplained = ""
        if self._is_reported:
            self._is_reported = False
            self._report("INFO", f"the drafter at {self._address} answers again")

    def record_failure(self, error: SpeculantError, started_s: float, now_s: float, *, was_late: bool) -> None:
        """Record a failed step.

        One or two late answers cause no warning. After three late answers in a row, the warning waits for the outcome
        of the first probe. Without the probe's outcome, the warning would report a slow drafter even if the cause is a
        wrong certificate. Refusals do not open the breaker.

        Args:
            error: the error of the step.
            started_s: start of the step. Steps that ran at the same time fail together and count as one failure.
            now_s: time of the failure.
            was_late: whether no answer came in time; ``error`` then does not contain the reason.
        """
        if self.is_down or started_s < self._last_failure_s:
            return
        self._last_failure_s = now_s
        self._num_failures += 1
        if self._num_failures < _FAILURES_BEFORE_PAUSE:
            return
        self.is_down = not is_refusal(error)
        if not was_late:
            self.report_outage(str(error))
        elif not self._is_reported:
            self._unexplained = str(error)

    def has_lost_probe(self, now_s: float) -> bool:
        """Return whether a probe was not answered in time."""
        return self._is_probing and now_s - self._last_probe_s >= _PROBE_TIMEOUT_S

    def begin_probe(self, now_s: float) -> bool:
        """Return whether to send a probe now; if so, record the probe as started."""
        if not self.is_down or self._is_probing or now_s - self._last_probe_s < PAUSE_S:
            return False
        self._is_probing, self._last_probe_s = True, now_s
        return True

    def record_probe(self, error: SpeculantError | None) -> None:
        """Record the outcome of the running probe, if any. An answered probe closes the breaker."""
        if not self._is_probing:
            return
        self._is_probing = False
        if error is None:
            self.is_down = False
            self._num_failures = _FAILURES_BEFORE_PAUSE - 1  # on trial: a probe is less work than a step
        if self._unexplained:
            slow = "it answers, but too late; if that continues, raise client.deadline_ms"
            self.report_outage(f"{self._unexplained} ({slow if error is None else error})")

    def report_outage(self, reason: str) -> None:
        """Write a warning, once per outage."""
        self._unexplained = ""
        if not self._is_reported:
            self._is_reported = True
            self._report("WARNING", f"no drafts from the drafter at {self._address}, continuing without: {reason}")
