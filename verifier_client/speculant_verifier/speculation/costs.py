"""How long one forward pass takes, by the rows of the batch and the tokens of each row."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from speculant_graph.draft.cost import MAX_POINT, CostCurve
from speculant_graph.errors import ConfigError

_Curves = tuple[tuple[int, NDArray[np.float64], NDArray[np.float64]], ...]


@dataclass(frozen=True, slots=True)
class CostPoint:
    """One measured pass."""

    batch: int
    """Rows."""
    tokens: int
    """Tokens of each row: the last known one and the drafted nodes."""
    ms: float
    """Milliseconds of the pass."""


@dataclass(frozen=True, slots=True)
class CostTable:
    """Measured passes, and estimates of all others.

    Along the tokens of a row the measured points are joined by straight lines, which go on behind the last one; a pass
    never costs less than one of fewer tokens. Between two measured batches it is a straight line again. A batch outside
    of the measured ones costs what the nearest one does for as many tokens altogether.
    """

    points: tuple[CostPoint, ...]
    """At least one, with one token, for every batch; different from each other."""
    context: int
    """Tokens that every row had in the cache."""
    _curves: _Curves = field(init=False, repr=False, compare=False)
    _tables: dict[int, NDArray[np.float64]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check the points and put them in order.

        Raises:
            ConfigError: they make no table.
        """
        if not _is_count(self.context, 0):
            raise ConfigError("a table of costs needs the length of the context; measure it again")
        by_batch: dict[int, dict[int, float]] = defaultdict(dict)
        for point in self.points:
            is_number = isinstance(point.ms, Real) and not isinstance(point.ms, bool)
            if not (_is_count(point.batch, 1) and _is_count(point.tokens, 1) and is_number):
                raise ConfigError(f"{point} is no measured pass; measure the costs again")
            if not 0.0 < point.ms < float("inf") or point.tokens > MAX_POINT:
                raise ConfigError(f"{point} is out of range; measure the costs again")
            by_batch[point.batch][point.tokens] = float(point.ms)
        if not by_batch or any(1 not in times for times in by_batch.values()):
            raise ConfigError("a table of costs needs a pass of one token for every batch; measure it again")
        if sum(map(len, by_batch.values())) != len(self.points):
            raise ConfigError("a table of costs has a pass twice; measure it again")
        curves = []
        for batch, times in sorted(by_batch.items()):
            tokens = sorted(times)
            # Noise may make a longer pass look cheaper than a shorter one.
            rising = np.maximum.accumulate(np.array([times[width] for width in tokens]))
            curves.append((batch, np.array(tokens, np.float64), rising))
        object.__setattr__(self, "_curves", tuple(curves))

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
        return CostCurve.from_points(tokens, [self.relative(batch, width) for width in tokens])

    def to_json(self) -> dict[str, Any]:
        """Return the table as values that JSON has."""
        rows = [{"batch": point.batch, "tokens": point.tokens, "ms": point.ms} for point in self.points]
        return {"points": rows, "context": self.context}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> CostTable:
        """Make a table of what :meth:`to_json` gave.

        Raises:
            ConfigError: it is something else.
        """
        try:
            points = tuple(CostPoint(row["batch"], row["tokens"], row["ms"]) for row in content["points"])
            context = content["context"]
        except (KeyError, TypeError) as error:
            raise ConfigError("this is no table of costs; measure it again") from error
        return cls(points, context)


def _on(curve: tuple[int, NDArray[np.float64], NDArray[np.float64]], tokens: float) -> float:
    _, widths, times = curve
    if tokens > widths[-1] and len(widths) > 1:
        slope = (times[-1] - times[-2]) / (widths[-1] - widths[-2])
        return float(times[-1] + slope * (tokens - widths[-1]))
    return float(np.interp(tokens, widths, times))


def _is_count(value: object, least: int) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least
