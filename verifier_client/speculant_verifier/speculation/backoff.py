"""Whether drafts have paid lately, the time counted that it takes to draft.

What a node is worth and what a wider pass costs is estimated for every step; this is what came of it. In large
batches of small models the drafts themselves take a good part of a pass, and an estimate may be wrong. So where the
last steps with drafts brought fewer tokens a time than plain ones would have, nothing is drafted for a while, and each
time in a row for longer.
"""

from __future__ import annotations

_MEMORY = 0.95
"""What a step weighs after the next one."""
_TRIAL = 12
"""Steps before a judgement."""
_FIRST_PAUSE, _LONGEST_PAUSE = 32, 1024


class SpeculationBackoff:
    """The back-off of one engine; times are in plain passes over the same rows."""

    def __init__(self) -> None:
        """Begin with a trial."""
        self._tokens = self._time = 0.0
        self._num_steps = 0
        self._resume_at, self._pause = 0, _FIRST_PAUSE

    def allows(self, step: int) -> bool:
        """Return whether to draft at a step."""
        return step >= self._resume_at

    def observe(self, step: int, tokens: float, width_cost: float, draft_share: float) -> None:
        """Note a step that was drafted for.

        Args:
            step: its number.
            tokens: emitted for each row.
            width_cost: time of its pass, relative to a plain one of as many rows.
            draft_share: time until its drafts were there, in the same unit.
        """
        self._tokens = self._tokens * _MEMORY + tokens
        self._time = self._time * _MEMORY + width_cost + draft_share
        self._num_steps += 1
        if self._num_steps < _TRIAL:
            return
        if self._tokens < self._time:
            self._resume_at = step + 1 + self._pause
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
            self._tokens = self._time = 0.0
            self._num_steps = 0
        else:
            self._pause = _FIRST_PAUSE
