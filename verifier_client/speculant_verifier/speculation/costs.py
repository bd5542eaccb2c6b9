"""Measured and estimated durations of forward passes, by rows of the batch and tokens per row."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from speculant_graph.budget import CURVES, CostCurve
from speculant_graph.budget.pass_cost import MAX_POINT

TOKENS = (1, 2, 4, 8, 16, 32, 64)
"""Numbers of tokens per row for which a cost table has a measured or estimated time."""

_FEWEST_KNOWN = 64
"""The estimates for all passes up to at least this number of tokens per row are computed at once."""
_Curve = tuple[int, NDArray[np.float64], NDArray[np.float64]]


@dataclass(frozen=True)
class CostPoint:
    """The duration of one forward pass, measured or predicted."""

    batch: Annotated[int, Field(ge=1)]
    """Number of rows."""
    tokens: Annotated[int, Field(ge=1, le=MAX_POINT)]
    """Number of tokens of each row: the last known token and the drafted nodes."""
    ms: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    """Duration of the pass in milliseconds."""
    is_measured: bool = True
    """Whether the time was measured; otherwise it was predicted, for a model with streamed weights."""


@dataclass(frozen=True)
class CostTable:
    """Times of measured passes, and estimates for all other passes.

    For each number in :data:`TOKENS` that was not measured, the time follows the typical cost curve. The typical curve
    is scaled to meet both adjacent measured points or, beyond the last measured point, this point alone. Between the
    numbers of tokens with a known time, times are interpolated linearly; beyond the last number, they are extrapolated
    linearly. A pass never costs less than a pass with fewer tokens. For a batch size between two measured sizes, the
    time is interpolated linearly. A batch size outside the measured range costs as much as the nearest measured size
    with the same total number of tokens.
    """

    points: tuple[CostPoint, ...]
    """Passes and their durations; no pass is listed twice, and every batch size has a pass over one token per row."""
    context: Annotated[int, Field(ge=0)]
    """Number of tokens in every row's KV cache during the measurement."""
    typical: Literal["dense", "cpu-moe"] = "dense"
    """Name of the typical cost curve, see :data:`~speculant_graph.budget.CURVES`."""

    def __post_init__(self) -> None:
        """Check that every batch size has a pass over one token per row.

        Raises:
            ValueError: a batch size has no pass over one token per row.
        """
        alone = {point.batch for point in self.points if point.tokens == 1}
        if not self.points or any(point.batch not in alone for point in self.points):
            raise ValueError("a table of costs needs a pass of one token for every batch")

    @cached_property
    def _curves(self) -> list[_Curve]:
        by_batch: dict[int, dict[int, float]] = defaultdict(dict)
        for point in self.points:
            by_batch[point.batch][point.tokens] = point.ms
        curves = []
        for batch, times in sorted(by_batch.items()):
            widths = np.array(sorted(times))
            # Noise may make a wider pass look cheaper than a narrower one.
            rising = np.maximum.accumulate([times[width] for width in widths.tolist()])
            curves.append((batch, *_filled(widths, rising, CURVES[self.typical])))
        return curves

    @property
    def fewest_widths(self) -> int:
        """Smallest number of widths that a batch size has in the table."""
        return min(sum(point.batch == batch for point in self.points) for batch in {each.batch for each in self.points})

    @cached_property
    def _tables(self) -> dict[int, NDArray[np.float64]]:
        return {}

    def ms(self, batch: int, tokens: NDArray[np.float64]) -> NDArray[np.float64]:
        """Estimate the durations of passes, in milliseconds.

        Args:
            batch: number of rows, at least 1.
            tokens: for every pass, the number of tokens per row, at least 1; it may be a mean over steps and thus
                fractional.
        """
        batches = [measured for measured, _, _ in self._curves]
        if not batches[0] <= batch <= batches[-1]:
            nearest = 0 if batch < batches[0] else -1
            return _on(self._curves[nearest], tokens * batch / batches[nearest])
        estimates = np.maximum.accumulate([_on(curve, tokens) for curve in self._curves])
        after = int(np.searchsorted(batches, batch))
        if batches[after] == batch:
            return np.asarray(estimates[after])
        share = (batch - batches[after - 1]) / (batches[after] - batches[after - 1])
        return np.asarray(estimates[after - 1] + share * (estimates[after] - estimates[after - 1]))

    def relative(self, batch: int, tokens: float) -> float:
        """Estimate a pass's time relative to a pass over the same batch with one token per row."""
        times = self.ms(batch, np.array([1.0, tokens]))
        return float(times[1] / times[0])

    def seconds(self, num_rows: int, most_tokens: int) -> NDArray[np.float64]:
        """Return the seconds per pass, with rows padded to one width; see :class:`~speculant_graph.budget.PassCost`."""
        known = self._tables.get(num_rows)
        if known is None or len(known) <= most_tokens:
            tokens = np.maximum(np.arange(max(_FEWEST_KNOWN * num_rows, most_tokens) + 1), num_rows)
            known = self._tables[num_rows] = self.ms(num_rows, tokens / num_rows) / 1e3
        return known[: most_tokens + 1]


def _on(curve: _Curve, tokens: NDArray[np.float64]) -> NDArray[np.float64]:
    _, widths, times = curve
    found = np.interp(tokens, widths, times)
    if len(widths) > 1:
        slope = (times[-1] - times[-2]) / (widths[-1] - widths[-2])
        found += slope * np.maximum(tokens - widths[-1], 0.0)
    return np.asarray(found)


def _filled(
    widths: NDArray[np.int64], times: NDArray[np.float64], typical: CostCurve
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Add the missing numbers of :data:`TOKENS`, with estimated times, to a measured curve.

    Args:
        widths: measured numbers of tokens, ascending from 1.
        times: times of the passes over ``widths`` tokens, ascending.
        typical: curve whose shape the estimates follow.

    Returns:
        All numbers of tokens per row, and the measured or estimated time of each.
    """
    shape, last = typical.seconds(1, max(TOKENS[-1], int(widths[-1]))), int(widths[-1])
    filled = np.union1d(widths, TOKENS)
    # Where the typical curve is flat, interpolate by the number of tokens.
    measured_at, filled_at = (shape[each] + 1e-11 * each for each in (widths, filled))
    estimates = np.interp(filled_at, measured_at, times)
    beyond = filled > last
    estimates[beyond] = times[-1] * shape[filled[beyond]] / shape[last]
    return filled.astype(np.float64), estimates
