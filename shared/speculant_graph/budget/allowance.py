"""What drafts may lose: a small share of the time, and no more."""

from __future__ import annotations

import math

_SHARE = 0.01
"""Of the time of passes, which may be lost by trying."""
_MOST_PASSES = 16.0
"""Passes that an allowance is worth at most."""


class Allowance:
    """An account of time: what drafts save is added, what they take beyond that is subtracted.

    A share of the time of all passes is added, too. So drafts that do not pay are tried now and then, and all that they
    cost in the long run is that share. One lucky or unlucky step decides nothing.
    """

    def __init__(self, first_passes: float) -> None:
        """Begin without limit; there is one from the first pass on, worth ``first_passes`` passes."""
        self._first_passes = first_passes
        self._seconds = math.inf
        self._pass_s = 0.0
        self._is_spent = False

    def allows(self) -> bool:
        """Whether to try: not after it was spent, until it is worth a pass again."""
        if self._is_spent:
            self._is_spent = self._seconds < self._pass_s
        else:
            self._is_spent = self._seconds < 0.0
        return not self._is_spent

    def covers(self, seconds: float) -> bool:
        """Whether so much may be spent now."""
        return self._seconds >= seconds

    def add_pass(self, seconds: float) -> None:
        """Add the share of a pass that took so long."""
        self._pass_s = seconds
        if math.isinf(self._seconds):
            self._seconds = self._first_passes * seconds
        self._seconds = min(_MOST_PASSES * seconds, self._seconds + _SHARE * seconds)

    def add(self, seconds: float) -> None:
        """Add what was saved; negative: what was spent."""
        self._seconds += seconds
