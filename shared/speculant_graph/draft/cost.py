"""What verifying costs: the time of one forward pass, by the number of tokens in it.

A pass over n tokens takes ``at(n)`` times as long as a pass over one. On a dense model the curve is nearly flat at
first; on a mixture of experts every token wakes further experts, and a draft must earn what it costs.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter, ValidationError

from speculant_graph.errors import ConfigError

MAX_POINT = 4_096
"""Most tokens that a curve may cover."""

_EXAMPLE = '{"tokens": [1, 2, 4], "relative": [1.0, 1.2, 1.5]}'
_TOKENS = TypeAdapter(tuple[Annotated[int, Field(strict=True, ge=1, le=MAX_POINT)], ...])
_COSTS = TypeAdapter(tuple[Annotated[float, Field(gt=0.0, allow_inf_nan=False)], ...])


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
        try:
            tokens, costs = _TOKENS.validate_python(self.tokens), _COSTS.validate_python(self.relative)
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            raise _no_curve(f"point {problem['loc'][0] if problem['loc'] else 0}: {problem['msg']}") from None
        if not tokens or tokens[0] != 1 or any(b <= a for a, b in pairwise(tokens)):
            raise _no_curve("numbers of tokens ascend from 1")
        if len(tokens) != len(costs):
            raise _no_curve(f"there are {len(tokens)} numbers of tokens and {len(costs)} costs")
        object.__setattr__(self, "relative", costs)

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
    def from_file(cls, path: str | Path) -> CostCurve:
        """Read a curve from a JSON file: ``{"tokens": [1, 2, 4], "relative": [1.0, 1.2, 1.5]}``.

        Raises:
            ConfigError: the file can't be read or holds no curve.
        """
        try:
            content = json.loads(Path(path).read_bytes())
            return cls(tuple(content["tokens"]), tuple(content["relative"]))
        except OSError as error:
            raise ConfigError(
                f"can't read the cost curve {path} ({error.strerror or error}); check the path and its permissions"
            ) from error
        except (ConfigError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise ConfigError(f"{path} holds no cost curve ({error}); make it look like {_EXAMPLE}") from error


def _no_curve(problem: str) -> ConfigError:
    return ConfigError(f"these points make no cost curve ({problem}); make it look like {_EXAMPLE}")


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
