"""A limit on the time that drafts may lose: a small share of all time."""

from __future__ import annotations

import math

_SHARE = 0.01
"""Share of all passes' time that trials of drafts may lose."""
_MOST_PASSES = 16.0
"""Maximum balance of the account, as a number of passes."""


class Allowance:
    """An account of time: savings by drafts are added, and losses are subtracted.

    A share of every pass's time is also added. So unprofitable drafts are tried from time to time, and cost at most
    this share in the long run. A single lucky or unlucky step does not decide.
    """

    def __init__(self, first_passes: float) -> None:
        """Start without a limit; the first pass sets the balance to ``first_passes`` passes."""
        self._first_passes = first_passes
        self._seconds = math.inf
        self._pass_s = 0.0
        self._is_spent = False

    def allows(self) -> bool:
        """Return whether to try drafts. After the balance becomes negative, drafts rest until it reaches one pass."""
        if self._is_spent:
            self._is_spent = self._seconds < self._pass_s
        else:
            self._is_spent = self._seconds < 0.0
        return not self._is_spent

    def num_rest(self) -> int:
        """Return the number of passes during which drafts rest; 0 if they do not rest."""
        missing_s = self._pass_s - self._seconds
        return math.ceil(missing_s / (_SHARE * self._pass_s)) if self._is_spent and missing_s > 0.0 else 0

    def covers(self, seconds: float) -> bool:
        """Return whether the balance covers an expense, in seconds."""
        return self._seconds >= seconds

    def add_pass(self, seconds: float) -> None:
        """Add the share of a pass that took this many seconds."""
        self._pass_s = seconds
        if math.isinf(self._seconds):
            self._seconds = self._first_passes * seconds
        self._seconds = min(_MOST_PASSES * seconds, self._seconds + _SHARE * seconds)

    def add(self, seconds: float) -> None:
        """Add seconds saved; negative for seconds lost."""
        self._seconds += seconds
