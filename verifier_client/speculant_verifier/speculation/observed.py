"""Corrects the costs in a cost table by the duration of every observed pass.

A cost table is measured only once, in a few seconds, and not at every width. After the measurement, contexts grow and
the machine may have other work. The duration of every pass is therefore compared with its estimate. The difference
corrects the estimates for the pass's width and for nearby widths.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from speculant_verifier.speculation.costs import CostTable

_MEMORY = 0.95
"""Factor by which a pass's weight decays with every later pass of the same number of rows and tokens."""
_MEASURED_WEIGHT, _ESTIMATED_WEIGHT = 12.0, 2.0
"""Weights, in passes, of the mean error of all widths in the estimated error of one width: for measured and for
unmeasured widths."""
_LARGEST_ERROR = math.log(4.0)
"""Upper bound of one pass's logarithmic error, so that a pass that waited for other work counts little."""


class ObservedCosts:
    """A cost table with corrections from an engine's passes; only one thread at a time may use it."""

    def __init__(self, table: CostTable) -> None:
        """Start with the costs of ``table``, without corrections."""
        self._table = table
        self._measured = {(point.batch, point.tokens) for point in table.points if point.is_measured}
        self._errors: dict[int, dict[int, tuple[float, float]]] = {}  # by rows and width: weight, and weighted error
        self._corrections: dict[int, tuple[NDArray[np.float64], NDArray[np.float64]]] = {}

    def observe(self, num_rows: int, num_tokens: int, seconds: float) -> None:
        """Record the duration of a pass; see :class:`~speculant_graph.budget.PassCost`."""
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
        """Return the seconds per pass, with rows padded to one width; see :class:`~speculant_graph.budget.PassCost`."""
        estimates = self._table.seconds(num_rows, most_tokens)
        if num_rows not in self._errors:
            return estimates
        if num_rows not in self._corrections:
            self._corrections[num_rows] = self._correction(num_rows)
        widths, corrections = self._corrections[num_rows]
        wanted = np.log(np.maximum(1.0, np.arange(most_tokens + 1) / num_rows))
        return np.asarray(np.maximum.accumulate(estimates * np.exp(np.interp(wanted, widths, corrections))))

    def _correction(self, num_rows: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the logarithms of the observed widths, ascending, and of the factors that correct their estimates."""
        errors = self._errors[num_rows]
        weights = np.array([weight for weight, _ in errors.values()])
        totals = np.array([total for _, total in errors.values()])
        common = totals.sum() / weights.sum()
        priors = np.array([
            _MEASURED_WEIGHT if (num_rows, width) in self._measured else _ESTIMATED_WEIGHT for width in errors
        ])  # fmt: skip
        # A width with few passes is assumed to have the common error.
        corrections = (totals + priors * common) / (weights + priors)
        order = np.argsort([*errors])
        return np.log(np.array([*errors], np.float64))[order], corrections[order]
