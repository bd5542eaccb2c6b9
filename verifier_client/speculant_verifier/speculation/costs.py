"""How long one forward pass takes, by the rows of the batch and the tokens of each row."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from speculant_graph.draft.cost import MAX_POINT, CostCurve

_Curve = tuple[int, NDArray[np.float64], NDArray[np.float64]]


@dataclass(frozen=True)
class CostPoint:
    """One measured pass."""

    batch: Annotated[int, Field(ge=1)]
    """Rows."""
    tokens: Annotated[int, Field(ge=1, le=MAX_POINT)]
    """Tokens of each row: the last known one and the drafted nodes."""
    ms: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    """Milliseconds of the pass."""


@dataclass(frozen=True)
class CostTable:
    """Measured passes, and estimates of all others.

    Along the tokens of a row the measured points are joined by straight lines, which go on behind the last one; a pass
    never costs less than one of fewer tokens. Between two measured batches it is a straight line again. A batch outside
    of the measured ones costs what the nearest one does for as many tokens altogether.
    """

    points: tuple[CostPoint, ...]
    """At least one, with one token, for every batch; different from each other."""
    context: Annotated[int, Field(ge=0)]
    """Tokens that every row had in the cache."""

    def __post_init__(self) -> None:
        """Check that plain decoding is among the passes of every batch.

        Raises:
            ValueError: it is not.
        """
        if not self.points or any(widths[0] != 1 for _, widths, _ in self._curves):
            raise ValueError("a table of costs needs a pass of one token for every batch")

    @cached_property
    def _curves(self) -> list[_Curve]:
        by_batch: dict[int, dict[int, float]] = defaultdict(dict)
        for point in self.points:
            by_batch[point.batch][point.tokens] = point.ms
        curves = []
        for batch, times in sorted(by_batch.items()):
            widths = sorted(times)
            # Noise may make a longer pass look cheaper than a shorter one.
            rising = np.maximum.accumulate(np.array([times[width] for width in widths]))
            curves.append((batch, np.array(widths, np.float64), rising))
        return curves

    @cached_property
    def _tables(self) -> dict[int, NDArray[np.float64]]:
        return {}

    @property
    def batches(self) -> tuple[int, ...]:
        """Measured batches, ascending."""
        return tuple(batch for batch, _, _ in self._curves)

    def ms(self, batch: int, tokens: float) -> float:
        """Estimate the milliseconds of a pass.

        Args:
            batch: rows, at least 1.
            tokens: tokens of each row, at least 1; a mean over steps may lie between two whole numbers.
        """
        batches = self.batches
        if not batches[0] <= batch <= batches[-1]:
            nearest = 0 if batch < batches[0] else -1
            return _on(self._curves[nearest], tokens * batch / batches[nearest])
        estimates = np.maximum.accumulate([_on(curve, tokens) for curve in self._curves])
        return float(np.interp(batch, batches, estimates))

    def relative(self, batch: int, tokens: float) -> float:
        """Estimate a pass in passes of one token over the same batch."""
        return self.ms(batch, tokens) / self.ms(batch, 1)

    def relative_of_widths(self, batch: int, width: int) -> NDArray[np.float64]:
        """Return the relative costs of passes of 0 to ``width`` tokens, ``[width + 1]``; that of 0 is that of 1."""
        known = self._tables.get(batch)
        if known is None or len(known) <= width:
            known = np.array([self.relative(batch, max(1, tokens)) for tokens in range(max(64, width) + 1)])
            self._tables[batch] = known
        return known[: width + 1]

    def curve(self, batch: int) -> CostCurve:
        """Return the costs of a batch by tokens of a row, as drafters take them."""
        tokens = sorted({point.tokens for point in self.points})
        return CostCurve(tuple(tokens), tuple(self.relative(batch, width) for width in tokens))


def _on(curve: _Curve, tokens: float) -> float:
    _, widths, times = curve
    if tokens > widths[-1] and len(widths) > 1:
        slope = (times[-1] - times[-2]) / (widths[-1] - widths[-2])
        return float(times[-1] + slope * (tokens - widths[-1]))
    return float(np.interp(tokens, widths, times))
