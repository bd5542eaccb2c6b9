"""What verifying costs: the time of one forward pass, by the number of tokens in it.

A pass over n tokens takes ``at(n)`` times as long as a pass over one. On a dense model the curve is nearly flat at
first; on a mixture of experts every token wakes further experts, and a draft must earn what it costs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from speculant_graph.errors import ConfigError

MAX_POINT = 4_096
"""Most tokens that a curve may cover."""

_EXAMPLE = '{"tokens": [1, 2, 4], "relative": [1.0, 1.2, 1.5]}'
_MOST_SHOWN = 60
"""Characters of a wrong value in a message."""


@dataclass(frozen=True, slots=True)
class CostCurve:
    """Points of the curve; between them it is a straight line, beyond the last one it goes on like the last piece."""

    tokens: tuple[int, ...]
    """Tokens verified in one pass, ascending, from 1."""
    relative: tuple[float, ...]
    """Time of that pass, in any unit: all are divided by the first, the time of a pass over one token."""

    def __post_init__(self) -> None:
        """Check the points.

        Raises:
            ConfigError: they make no curve.
        """
        whole = f"numbers of tokens must be whole numbers up to {MAX_POINT}, such as 1, 2, 4"
        object.__setattr__(self, "tokens", tuple(map(int, _checked(self.tokens, Integral, MAX_POINT, whole))))
        positive = "relative costs must be positive and finite, such as 1.0, 1.2, 1.5"
        costs = _checked(self.relative, Real, sys.float_info.max, positive)
        object.__setattr__(self, "relative", tuple(map(float, costs)))
        if len(self.tokens) != len(self.relative) or not self.tokens:
            raise ConfigError(
                f"a cost curve has as many relative costs ({len(self.relative)}) as numbers of tokens "
                f"({len(self.tokens)}), and at least one; add what is missing"
            )
        if self.tokens[0] != 1 or any(b <= a for a, b in zip(self.tokens, self.tokens[1:], strict=False)):
            raise ConfigError(f"numbers of tokens must ascend from 1, such as 1, 2, 4, 8; change {_shown(self.tokens)}")

    def at(self, num_tokens: int) -> float:
        """Return the relative cost of a pass over so many tokens (at least 1)."""
        return float(self.table(num_tokens)[num_tokens])

    def table(self, num_tokens: int) -> NDArray[np.float64]:
        """Return the cost of passes over 0 to ``num_tokens`` tokens, shape ``[num_tokens + 1]``.

        Costs never fall as tokens are added: where a measured curve does, the higher cost stands. The entry 0 equals
        that of 1 and has no meaning.
        """
        costs = np.interp(np.arange(num_tokens + 1), self.tokens, self.relative)
        if len(self.tokens) > 1 and num_tokens > self.tokens[-1]:
            slope = (self.relative[-1] - self.relative[-2]) / (self.tokens[-1] - self.tokens[-2])
            beyond = np.arange(self.tokens[-1] + 1, num_tokens + 1)
            costs[self.tokens[-1] + 1 :] = self.relative[-1] + max(slope, 0.0) * (beyond - self.tokens[-1])
        return np.asarray(np.maximum.accumulate(costs) / self.relative[0])

    @classmethod
    def from_points(cls, tokens: Sequence[int], relative: Sequence[float]) -> CostCurve:
        """Make a curve of points in lists or arrays; see the class.

        Raises:
            ConfigError: they make no curve.
        """
        return cls(cast(Any, tokens), cast(Any, relative))  # they become tuples

    @classmethod
    def from_file(cls, path: str | Path) -> CostCurve:
        """Read a curve from a JSON file: ``{"tokens": [1, 2, 4], "relative": [1.0, 1.2, 1.5]}``.

        Raises:
            ConfigError: the file can't be read or holds no curve.
        """
        try:
            content = json.loads(Path(path).read_bytes())
            points = content["tokens"], content["relative"]
        except OSError as error:
            raise ConfigError(
                f"can't read the cost curve {path} ({error.strerror or error}); check the path and its permissions"
            ) from error
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ConfigError(f"{path} holds no cost curve; make it look like {_EXAMPLE}") from error
        try:
            return cls.from_points(*points)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error


def _checked(given: object, kind: type, most: float, rule: str) -> Sequence[Any]:
    values = given.tolist() if isinstance(given, np.ndarray) else given
    if not isinstance(values, Sequence) or isinstance(values, str | bytes):
        raise ConfigError(f"{rule}, in a list; change {_shown(given)}")
    for value in values:
        if not isinstance(value, kind) or isinstance(value, bool) or not 0 < cast(Any, value) <= most:
            raise ConfigError(f"{rule}, in a list; change {_shown(value)}")
    return values


def _shown(value: object) -> str:
    """Return a value as it is written, in one line of a bearable length."""
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]} …"


def _experts(num_tokens: int) -> float:
    # Traffic of experts alone, 4 of 32 for a token: the share of experts that n tokens wake, over that of one.
    return 0.35 + 0.65 * float(1 - 0.875**num_tokens) / 0.125


COST_CURVES: dict[str, CostCurve] = {
    "flat": CostCurve((1,), (1.0,)),
    "dense": CostCurve((1, 2, 4, 8, 16, 32, 64), (1.0, 1.0, 1.04, 1.16, 1.41, 1.91, 2.9)),
    "cpu-moe": CostCurve((1, 2, 4, 8, 16, 32, 64), (1.0, 1.21, 1.52, 1.78, 2.29, 2.79, 3.6)),
    "moe": CostCurve(tuple(range(1, 71)), tuple(_experts(num_tokens) for num_tokens in range(1, 71))),
}
"""Curves by name: 'flat' (free), 'dense' and 'cpu-moe' (measured on a CPU: a model of 152M parameters; one of 211M
with 32 experts, 4 of them active), 'moe' (traffic of experts alone: the worst case)."""
