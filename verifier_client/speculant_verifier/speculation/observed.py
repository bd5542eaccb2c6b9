"""Costs of passes that are corrected by every pass that happens.

A table is measured once, in a few seconds, and not at every width; texts grow, and machines have other work. So the
time of every pass is compared with its estimate, and corrects the estimates of such widths, and of those between.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from speculant_verifier.speculation.costs import CostTable

_MEMORY = 0.95
"""What a pass weighs after the next one of its kind."""
_MEASURED_WEIGHT, _ESTIMATED_WEIGHT = 12.0, 2.0
"""Passes that an estimate is worth, at widths that were measured and at others."""
_LARGEST_ERROR = math.log(4.0)
"""Of one pass, as a logarithm: one that waited for something else must not count for much."""


class ObservedCosts:
    """A table, and how much the passes of an engine differ from it; for one thread at a time."""

    def __init__(self, table: CostTable) -> None:
        """Begin with what was measured."""
        self._table = table
        self._measured = {(point.batch, point.tokens) for point in table.points if point.is_measured}
        self._errors: dict[int, dict[int, tuple[float, float]]] = {}  # by rows and width: weight, and weighted error
        self._corrections: dict[int, tuple[NDArray[np.float64], NDArray[np.float64]]] = {}

    def observe(self, num_rows: int, num_tokens: int, seconds: float) -> None:
        """Take how long a pass took; see :class:`~speculant_graph.budget.PassCost`."""
        if seconds <= 0.0:
            return
        width = max(1, round(num_tokens / num_rows))
        estimate = float(self._table.seconds(num_rows, num_rows * width)[-1])
        error = max(-_LARGEST_ERROR, min(_LARGEST_ERROR, math.log(seconds / estimate)))
        errors = self._errors.setdefault(num_rows, {})
        weight, total = errors.get(width, (0.0, 0.0))
        errors[width] = weight * _MEMORY + 1.0, total * _MEMORY + error
        self._corrections.pop(num_rows, None)

    def seconds(self, num_rows: int, most_tokens: int) -> NDArray[np.float64]:
        """Return what passes cost; see :class:`~speculant_graph.budget.PassCost`. Rows are filled up to one width."""
        estimates = self._table.seconds(num_rows, most_tokens)
        if num_rows not in self._errors:
            return estimates
        if num_rows not in self._corrections:
            self._corrections[num_rows] = self._correction(num_rows)
        widths, corrections = self._corrections[num_rows]
        wanted = np.log(np.maximum(1.0, np.arange(most_tokens + 1) / num_rows))
        return np.asarray(np.maximum.accumulate(estimates * np.exp(np.interp(wanted, widths, corrections))))

    def _correction(self, num_rows: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the logarithms of the widths that were noted, ascending, and of the factors of their estimates."""
        errors = self._errors[num_rows]
        weights = np.array([weight for weight, _ in errors.values()])
        totals = np.array([total for _, total in errors.values()])
        common = totals.sum() / weights.sum()
        priors = np.array([
            _MEASURED_WEIGHT if (num_rows, width) in self._measured else _ESTIMATED_WEIGHT for width in errors
        ])  # fmt: skip
        # Where few passes are known, a width is believed to err as all do.
        corrections = (totals + priors * common) / (weights + priors)
        order = np.argsort([*errors])
        return np.log(np.array([*errors], np.float64))[order], corrections[order]
