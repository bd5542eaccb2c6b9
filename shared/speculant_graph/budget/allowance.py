"""Limits the loss from unprofitable drafts to a small share of the total time."""

from __future__ import annotations

import math

_SHARE = 0.01
"""Share of the total pass time that trials of unprofitable drafts may lose."""
_MOST_PASSES = 16.0
"""Maximum balance of the time account, as a multiple of the latest pass's time."""


class Allowance:
    """A time account: seconds that drafts save are added, and seconds that they lose are subtracted.

    A small share of every pass's time is also added to the account. Unprofitable drafts are therefore tried from time
    to time, but in the long run they cost at most the added share. A single lucky or unlucky step does not decide
    whether to draft.
    """

    def __init__(self, first_passes: float) -> None:
        """Start without a limit; the first pass sets the balance to the time of ``first_passes`` passes."""
        self._first_passes = first_passes
        self._seconds = math.inf
        self._pass_s = 0.0
        self._is_spent = False

    def allows(self) -> bool:
        """Return whether to try drafts.

        Drafting pauses when the balance becomes negative, and resumes when it reaches the time of one pass.
        """
        if self._is_spent:
            self._is_spent = self._seconds < self._pass_s
        else:
            self._is_spent = self._seconds < 0.0
        return not self._is_spent

    def num_rest(self) -> int:
        """Return the number of passes for which drafting stays paused; 0 if it is not paused."""
        missing_s = self._pass_s - self._seconds
        return math.ceil(missing_s / (_SHARE * self._pass_s)) if self._is_spent and missing_s > 0.0 else 0

    def covers(self, seconds: float) -> bool:
        """Return whether the balance covers an expense of this many seconds."""
        return self._seconds >= seconds

    def add_pass(self, seconds: float) -> None:
        """Credit the account with its share of a pass that took this many seconds."""
        self._pass_s = seconds
        if math.isinf(self._seconds):
            self._seconds = self._first_passes * seconds
        self._seconds = min(_MOST_PASSES * seconds, self._seconds + _SHARE * seconds)

    def add(self, seconds: float) -> None:
        """Add the seconds that drafts saved; a negative number counts as seconds lost."""
        self._seconds += seconds
