"""When not to ask: a circuit breaker, so that a drafter that is down does not cost a deadline in every step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

BreakerState = Literal["closed", "open", "half-open"]
"""``closed``: ask. ``open``: don't. ``half-open``: one try is under way, and its outcome decides."""


class Breaker:
    """Opens after some failures in a row, and lets one try through after every pause."""

    def __init__(self, failures_before_pause: int, pause_s: float, clock: Callable[[], float]) -> None:
        """Make a closed breaker.

        Args:
            failures_before_pause: failures in a row that open it.
            pause_s: how long it stays open before the next try, seconds.
            clock: monotonic time in seconds.
        """
        self._failures_before_pause = failures_before_pause
        self._pause_s = pause_s
        self._clock = clock
        self._state: BreakerState = "closed"
        self._num_failures = 0
        self._paused_s = 0.0

    @property
    def state(self) -> BreakerState:
        """What it does with the next step."""
        return self._state

    def allows(self) -> bool:
        """Return whether to ask now; the outcome is told afterwards."""
        if self._state == "closed":
            return True
        now_s = self._clock()
        if now_s - self._paused_s < self._pause_s:
            return False
        # A try whose outcome is never told, as it was interrupted, is followed by another.
        self._paused_s = now_s
        self._state = "half-open"
        return True

    def succeeded(self) -> None:
        """Tell that the drafter answered."""
        self._state = "closed"
        self._num_failures = 0

    def failed(self) -> None:
        """Tell that it did not."""
        self._num_failures += 1
        if self._state == "half-open" or self._num_failures >= self._failures_before_pause:
            self._state = "open"
            self._paused_s = self._clock()
