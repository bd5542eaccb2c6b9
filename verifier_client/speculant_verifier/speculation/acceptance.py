"""What has become of a sequence's drafts, and what may be expected of the next one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

MAX_DEPTH = 64
"""Deeper nodes count as nodes of this depth."""

_MEMORY = 0.95
"""What a draft weighs after the next one."""
_PRIOR_ACCEPTANCE, _PRIOR_WEIGHT = 0.7, 1.0
"""First expectation of a node whose parent was accepted, and how many nodes it is worth."""
_INHERITED_WEIGHT = 2.0
"""Nodes that what other sequences have met is worth."""
_SHARED_WEIGHT = 2.0
"""Nodes that the acceptance at all depths together is worth at each of them."""


class AcceptanceHistory:
    """Acceptance by depth, and of what drafters predict; recent drafts count most.

    Kept is, for every depth, how often a node was accepted whose parent was; so depths that were not tried lately are
    expected to be like the others.
    """

    __slots__ = ("_accepted", "_predicted", "_prior", "_reached", "_realised")

    def __init__(self, expected: AcceptanceHistory | None = None) -> None:
        """Begin with what other sequences have met, if there were any."""
        self._reached = np.zeros(MAX_DEPTH)
        self._accepted = np.zeros(MAX_DEPTH)
        if expected is None:
            self._prior = (_PRIOR_ACCEPTANCE * _PRIOR_WEIGHT, _PRIOR_WEIGHT)
            self._realised = self._predicted = 1.0
        else:
            self._prior = (expected.overall * _INHERITED_WEIGHT, _INHERITED_WEIGHT)
            self._realised, self._predicted = expected.calibration * _INHERITED_WEIGHT, _INHERITED_WEIGHT

    @property
    def overall(self) -> float:
        """Share of nodes that were accepted, of those whose parent was."""
        return float((self._accepted.sum() + self._prior[0]) / (self._reached.sum() + self._prior[1]))

    def by_depth(self) -> NDArray[np.float64]:
        """Return the estimated probability that a path is accepted down to depth 1, 2, ..., shape ``[MAX_DEPTH]``."""
        shared = self.overall * _SHARED_WEIGHT
        return np.asarray(np.cumprod((self._accepted + shared) / (self._reached + _SHARED_WEIGHT)))

    @property
    def calibration(self) -> float:
        """Accepted nodes for each one that drafters predicted, recently; at most 1."""
        return min(1.0, self._realised / self._predicted)

    def observe(self, depths: Sequence[int], num_accepted: int, predicted: float) -> None:
        """Note what became of a draft that was verified.

        Args:
            depths: depth of every node, at least one node.
            num_accepted: length of the accepted path.
            predicted: sum of the nodes' path probabilities, 0 if there are none.
        """
        deepest = min(max(depths), MAX_DEPTH)
        self._reached *= _MEMORY
        self._accepted *= _MEMORY
        self._prior = (self._prior[0] * _MEMORY, self._prior[1] * _MEMORY)
        self._reached[: min(num_accepted + 1, deepest)] += 1.0
        self._accepted[: min(num_accepted, deepest)] += 1.0
        if predicted > 0.0:
            self._realised = self._realised * _MEMORY + num_accepted
            self._predicted = self._predicted * _MEMORY + predicted
