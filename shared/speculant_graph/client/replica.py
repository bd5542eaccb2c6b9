"""One drafter of a client: its stream, what it has not answered, and when it is not to be asked.

A breaker opens after some failures in a row, so that a drafter that is down does not cost a deadline in every step.
"""

from __future__ import annotations

from speculant_graph.client.actions import Action, Report, StartProbing
from speculant_graph.client.batches import SentMessage
from speculant_graph.errors import (
    AccessError,
    DraftLimitError,
    DraftRequestError,
    SpeculantError,
    TokenizerMismatchError,
)

_MAX_UNANSWERED = 4_096
"""A drafter that skips steps must not fill the memory."""


def is_refusal(error: SpeculantError) -> bool:
    """Return whether a drafter refused, rather than gave no answer."""
    return isinstance(error, DraftRequestError | TokenizerMismatchError | AccessError)


def retry_delay_s(refusal: SpeculantError, default_s: float) -> float:
    """Return for how long what was refused is not asked for again."""
    return (refusal.retry_delay_s if isinstance(refusal, DraftLimitError) else 0.0) or default_s


class Replica:
    """A client's record of one drafter."""

    def __init__(self, index: int, address: str, failures_before_pause: int, actions: list[Action]) -> None:
        """Make a replica that counts as up; what is to be done about it is appended to ``actions``."""
        self.index = index
        self.address = address
        self.is_down = False
        """Whether its breaker is open: steps must not use it."""
        self.unanswered: dict[int, SentMessage] = {}
        """Messages on the stream by step id, oldest first. Ids are never used again, whatever becomes of the stream."""
        self.vocabulary_size = 0
        """Drafted token ids must be below it; it comes with every opened session."""
        self.retry_after_s = 0.0
        """It asked not to be asked before this time."""
        self._failures_before_pause, self._actions = failures_before_pause, actions
        self._num_failures = 0
        self._last_failure_s = float("-inf")
        self._last_step_id = 0
        self._is_reported = False
        self._unexplained = ""

    def note_sent(self, sent: SentMessage) -> int:
        """Note a message that is about to be sent; return its step id."""
        self._last_step_id += 1
        self.unanswered[self._last_step_id] = sent
        if len(self.unanswered) > _MAX_UNANSWERED:
            del self.unanswered[next(iter(self.unanswered))]
        return self._last_step_id

    def drop_unanswered(self) -> list[SentMessage]:
        """Return what is not answered, and forget it."""
        lost = list(self.unanswered.values())
        self.unanswered.clear()
        return lost

    def note_success(self) -> None:
        """Note a step or an opening that was answered in time."""
        self._num_failures = 0
        self._unexplained = ""
        if self._is_reported:
            self._is_reported = False
            self._actions.append(Report("INFO", f"the drafter at {self.address} answers again"))

    def note_failure(self, error: SpeculantError, started_s: float, now_s: float, *, was_late: bool) -> None:
        """Note a failed step.

        A single late answer is not yet an outage worth a warning, and a row of them is reported with the reason that
        the first probe finds: a wrong certificate must not look like a slow drafter. Refusals do not open the breaker.

        Args:
            error: what went wrong.
            started_s: when the step began. Steps that ran at the same time fail together and count as one.
            now_s: when it failed.
            was_late: no answer came, so that ``error`` explains nothing.
        """
        if self.is_down or started_s < self._last_failure_s:
            return
        self._last_failure_s = now_s
        self._num_failures += 1
        if self._num_failures < self._failures_before_pause:
            return
        self.is_down = not is_refusal(error)
        if self.is_down:
            self._actions.append(StartProbing())
        if not was_late:
            self.report_outage(str(error))
        elif not self._is_reported:
            self._unexplained = str(error)

    def note_probe(self, error: SpeculantError | None) -> None:
        """Note the outcome of a probe, which closes the breaker if it was answered."""
        if error is None and self.is_down:
            self.is_down = False
            self._num_failures = self._failures_before_pause - 1  # on trial: a probe is less work than a step
        if self._unexplained:
            slow = "it answers, but too late; if that goes on, raise client.deadline_ms"
            self.report_outage(f"{self._unexplained} ({slow if error is None else error})")

    def report_outage(self, reason: str) -> None:
        """Warn, once in this outage."""
        self._unexplained = ""
        if not self._is_reported:
            self._is_reported = True
            text = f"no drafts from the drafter at {self.address}, going on without: {reason}"
            self._actions.append(Report("WARNING", text))
