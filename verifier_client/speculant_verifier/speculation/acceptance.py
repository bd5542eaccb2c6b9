"""What has become of a sequence's drafts, and what may be expected of the next one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

MAX_DEPTH = 64
"""Deeper nodes count as nodes of this depth."""

_MEMORY = 0.85
"""What a draft weighs after the next one."""
_PRIOR_ACCEPTANCE = 0.7
"""First expectation of a node whose parent was accepted."""
_INHERITED_WEIGHT = 2.0
"""Drafts that the expectation taken over from other sequences is worth."""


class AcceptanceHistory:
    """Acceptance by depth, and of what drafters promise; recent drafts count most."""

    __slots__ = ("_accepted", "_kept", "_promised", "_tried")

    def __init__(self, expected: AcceptanceHistory | None = None) -> None:
        """Begin with what other sequences have met, if there were any."""
        if expected is None:
            self._tried = np.ones(MAX_DEPTH)
            self._accepted = _PRIOR_ACCEPTANCE ** np.arange(1.0, MAX_DEPTH + 1)
            self._kept = self._promised = 1.0
        else:
            self._tried = np.full(MAX_DEPTH, _INHERITED_WEIGHT)
            self._accepted = self._tried * expected.by_depth()
            self._kept, self._promised = expected.calibration * _INHERITED_WEIGHT, _INHERITED_WEIGHT

    def by_depth(self) -> NDArray[np.float64]:
        """Return the estimated probability that a path is accepted down to depth 1, 2, ..., shape ``[MAX_DEPTH]``.

        Never rising: a deeper node needs all above it.
        """
        return np.asarray(np.minimum.accumulate(self._accepted / self._tried))

    @property
    def calibration(self) -> float:
        """Accepted nodes for each one that drafters promised, recently; at most 1."""
        return min(1.0, self._kept / self._promised)

    def observe(self, depths: Sequence[int], num_accepted: int, promised: float) -> None:
        """Note what became of a draft that was verified.

        Args:
            depths: depth of every node, at least one node.
            num_accepted: length of the accepted path.
            promised: sum of the nodes' path probabilities, 0 if there are none.
        """
        deepest = min(max(depths), MAX_DEPTH)
        self._tried[:deepest] *= _MEMORY
        self._accepted[:deepest] *= _MEMORY
        self._tried[:deepest] += 1.0
        self._accepted[: min(num_accepted, deepest)] += 1.0
        if promised > 0.0:
            self._kept = self._kept * _MEMORY + num_accepted
            self._promised = self._promised * _MEMORY + promised
