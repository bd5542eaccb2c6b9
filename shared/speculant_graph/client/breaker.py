"""When not to ask a drafter: a breaker, so that one that is down does not cost a deadline in every step."""

from __future__ import annotations


class Breaker:
    """Opens after some failures in a row; a probe that is answered closes it again, on trial."""

    def __init__(self, failures_before_pause: int) -> None:
        """Make a closed breaker that ``failures_before_pause`` failures in a row open."""
        self._failures_before_pause = failures_before_pause
        self._num_failures = 0
        self._last_failure_s = float("-inf")
        self.is_open = False
        """Whether steps must not ask."""

    def succeeded(self) -> None:
        """Note a step that was answered in time."""
        self._num_failures = 0

    def failed(self, started_s: float, now_s: float) -> bool:
        """Note a step that was not; return whether this opened the breaker.

        Args:
            started_s: when the step began. Steps that ran at the same time fail together and count as one.
            now_s: when it failed.
        """
        if self.is_open or started_s < self._last_failure_s:
            return False
        self._last_failure_s = now_s
        self._num_failures += 1
        self.is_open = self._num_failures >= self._failures_before_pause
        return self.is_open

    def probed(self) -> None:
        """Close after an answered probe. The next failure opens at once: a probe is less work than a step."""
        if self.is_open:
            self.is_open = False
            self._num_failures = self._failures_before_pause - 1
