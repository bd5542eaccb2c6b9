"""The cost of a forward pass in seconds, as a function of its numbers of sequences and tokens.

For a dense model, the cost curve is nearly flat for small numbers of tokens. In a mixture of experts, every token
activates further experts, so a draft must earn its cost.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter, ValidationError

from speculant_graph.errors import ConfigError

MAX_POINT = 4_096
"""Maximum number of tokens at any point of a cost curve."""

_EXAMPLE = '{"tokens": [1, 8, 64], "ms": [3.0, 4.7, 6.4]}'
_TOKENS = TypeAdapter(tuple[Annotated[int, Field(strict=True, ge=1, le=MAX_POINT)], ...])
_MILLISECONDS = TypeAdapter(tuple[Annotated[float, Field(strict=True, gt=0.0, allow_inf_nan=False)], ...])


class PassCost(Protocol):
    """The cost of one engine's passes, known or learned from observed passes."""

    def seconds(self, num_rows: int, most_tokens: int) -> NDArray[np.float64]:
        """Return the seconds that passes over ``num_rows`` sequences take, for 0 to ``most_tokens`` tokens in total.

        The shape is ``[most_tokens + 1]``; values are positive and non-decreasing. The entries for fewer tokens than
        rows repeat the entry for one token per row.
        """

    def observe(self, num_rows: int, num_tokens: int, seconds: float) -> None:
        """Record the duration of a pass.

        Args:
            num_rows: sequences of the pass.
            num_tokens: tokens of all sequences together; in a padded pass, the padded width times the rows.
            seconds: seconds of the pass, positive.
        """


@dataclass(frozen=True, slots=True)
class CostCurve:
    """A known cost curve, linear between its points; the last segment is extrapolated."""

    tokens: tuple[int, ...]
    """Tokens of a pass at each point of the curve, all sequences together, ascending from 1."""
    ms: tuple[float, ...]
    """Milliseconds of the pass at each point; any unit is fine if only ratios of costs matter."""

    def __post_init__(self) -> None:
        """Check the points.

        Raises:
            ConfigError: the points do not define a curve.
        """
        try:
            tokens, times = _TOKENS.validate_python(self.tokens), _MILLISECONDS.validate_python(self.ms)
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            number = int(problem["loc"][0]) + 1 if problem["loc"] else 1
            raise _no_curve(f"point {number}: {problem['msg']}") from None
        if not tokens or tokens[0] != 1 or any(b <= a for a, b in pairwise(tokens)):
            raise _no_curve("numbers of tokens must ascend from 1")
        if len(tokens) != len(times):
            raise _no_curve(f"there are {len(tokens)} numbers of tokens and {len(times)} times")
        object.__setattr__(self, "ms", times)

    def seconds(self, num_rows: int, most_tokens: int) -> NDArray[np.float64]:
        """Return the cost of passes; see :class:`PassCost`.

        Where the curve falls, the highest cost of any smaller number of tokens is used.
        """
        tokens = np.arange(most_tokens + 1)
        times = np.interp(tokens, self.tokens, self.ms)
        if len(self.tokens) > 1:
            slope = (self.ms[-1] - self.ms[-2]) / (self.tokens[-1] - self.tokens[-2])
            times += max(slope, 0.0) * np.maximum(tokens - self.tokens[-1], 0)
        times = np.maximum.accumulate(times)
        times[:num_rows] = times[min(num_rows, most_tokens)]
        return np.asarray(times / 1e3)

    def observe(self, num_rows: int, num_tokens: int, seconds: float) -> None:
        """Ignore the observed pass, because the curve is known."""

    def relative(self, num_tokens: int) -> float:
        """Return the time of a pass over ``num_tokens`` tokens, divided by the time of a pass over one."""
        seconds = self.seconds(1, num_tokens)
        return float(seconds[num_tokens] / seconds[1])

    @classmethod
    def from_file(cls, path: str | Path) -> CostCurve:
        """Read a curve from a JSON file: ``{"tokens": [1, 8, 64], "ms": [3.0, 4.7, 6.4]}``.

        Raises:
            ConfigError: the file can't be read or contains no curve.
        """
        try:
            content = json.loads(Path(path).read_bytes())
            tokens, times = tuple(content["tokens"]), tuple(content["ms"])
            if len(tokens) == 1:
                raise _no_curve("one point does not show what further tokens cost")
            return cls(tokens, times)
        except OSError as error:
            raise ConfigError(
                f"can't read the cost curve {path} ({error.strerror or error}); check the path and its permissions"
            ) from error
        except ConfigError as error:
            raise ConfigError(f"{path}: {error.message}", fix=error.fix) from error
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ConfigError(
                f"{path} is not a JSON object with the lists 'tokens' and 'ms'", fix=f"make it look like {_EXAMPLE}"
            ) from error


@dataclass(frozen=True, slots=True)
class RowCurve:
    """An assumed cost curve: a pass's time depends on the tokens per sequence, not on the number of sequences."""

    curve: CostCurve
    """Cost curve of a pass over one sequence."""
    share: float = 1.0
    """Factor by which the curve's times are multiplied."""

    def seconds(self, num_rows: int, most_tokens: int) -> NDArray[np.float64]:
        """Return the cost of passes; see :class:`PassCost`."""
        table = self.share * self.curve.seconds(1, most_tokens // num_rows + 1)
        tokens = np.maximum(1.0, np.arange(most_tokens + 1) / num_rows)
        return np.asarray(np.interp(tokens, np.arange(len(table)), table))

    def observe(self, num_rows: int, num_tokens: int, seconds: float) -> None:
        """Ignore the observed pass, because the curve is an assumption."""


def curve_of(name: str, setting: str) -> CostCurve:
    """Return a named curve, or the curve in a file.

    Args:
        name: one of :data:`CURVES`, or a path.
        setting: name of the setting, for errors.

    Raises:
        ConfigError: there is no such curve, or the file contains none.
    """
    if name in CURVES:
        return CURVES[name]
    if not Path(name).is_file():
        raise ConfigError(
            f"{{field}}: there is no curve and no file '{name}'",
            fix=f"choose from {', '.join(CURVES)}, or name a file",
            field=setting,
        )
    return CostCurve.from_file(name)


def _no_curve(problem: str) -> ConfigError:
    return ConfigError(f"these points are not a cost curve ({problem})", fix=f"make it look like {_EXAMPLE}")


def _experts(num_tokens: int) -> float:
    """Return the expected share of active experts in a pass whose tokens each activate 4 of 32 experts."""
    return 1.0 - (28 / 32) ** num_tokens


_DOUBLING = (1, 2, 4, 8, 16, 32, 64)
_EVERY = (*range(1, 97), MAX_POINT)
_SHAPE_MS = 10.0
_SPARK_MS = 12.3


def _shape(relative: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(_SHAPE_MS * each for each in relative)


CURVES: dict[str, CostCurve] = {
    "flat": CostCurve((1,), (_SHAPE_MS,)),
    "dense": CostCurve(_DOUBLING, _shape((1.0, 1.0, 1.04, 1.16, 1.41, 1.91, 2.9))),
    "cpu-moe": CostCurve(_DOUBLING, _shape((1.0, 1.21, 1.52, 1.78, 2.29, 2.79, 3.6))),
    "moe": CostCurve(_EVERY[:70], _shape(tuple(0.35 + 0.65 * _experts(n) / _experts(1) for n in _EVERY[:70]))),
    "gptoss-h100": CostCurve(_EVERY, tuple(2.6 + 3.04 * _experts(n) + 0.012 * n for n in _EVERY)),
    "gptoss-spark": CostCurve(
        _DOUBLING[:6], tuple(_SPARK_MS * each for each in (1.0, 1.71, 2.13, 2.55, 3.23, 4.22))
    ),
    "dense-8b-h100": CostCurve((1, MAX_POINT), (6.315, 6.3 + 0.015 * MAX_POINT)),
}  # fmt: skip
"""Curves by name.

Some curves are shapes with an arbitrary unit. 'flat': additional tokens are free. 'dense': measured on a CPU with a
model of 152M parameters. 'cpu-moe': measured on a CPU with a model of 211M parameters and 32 experts, 4 of them active.
'moe': expert traffic only, the worst case.

The other curves are in milliseconds. 'gptoss-h100' and 'dense-8b-h100': gpt-oss-20b and a dense model of 8 billion
parameters on an H100; both are estimated from the bytes that a pass reads plus a fixed part. 'gptoss-spark':
gpt-oss-20b on a DGX Spark with llama.cpp, measured by others."""
