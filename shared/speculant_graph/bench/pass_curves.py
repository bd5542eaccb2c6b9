"""How long passes of an engine take, by the tokens in them: measured or estimated curves, by name or from a file."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import BaseModel, Field, ValidationError

from speculant_graph.errors import ConfigError
from speculant_graph.validation_messages import humanise

_EXAMPLE = '{"tokens": [1, 8, 64], "ms": [3.0, 4.7, 6.4]}'
_SPARK_TOKENS, _SPARK_RELATIVE = (1, 2, 4, 8, 16, 32), (1.0, 1.71, 2.13, 2.55, 3.23, 4.22)
_SPARK_MS = 12.3


@dataclass(frozen=True, slots=True)
class PassCurve:
    """Milliseconds of a pass, by its tokens."""

    name: str
    """As it was asked for."""
    milliseconds: Callable[[int], float]
    """Of a pass over so many tokens, at least one, all rows together."""


def pass_curve(name: str) -> PassCurve:
    """Return the curve of a name, or of a JSON file such as ``{"tokens": [1, 8, 64], "ms": [3.0, 4.7, 6.4]}``.

    Between the points of a file the curve is a straight line; beyond the last one it continues like the last piece.

    Raises:
        ConfigError: there is no such curve, or the file holds none.
    """
    if name in CURVES:
        return PassCurve(name, CURVES[name])
    path = Path(name)
    if not path.is_file():
        known = ", ".join(CURVES)
        raise ConfigError(f"--curve: there is no curve and no file '{name}'; choose from {known}, or name a file")
    try:
        points = _Points.model_validate(json.loads(path.read_bytes()))
    except (OSError, ValueError) as error:
        reason = humanise(error.errors()[0]) if isinstance(error, ValidationError) else str(error)
        raise ConfigError(f"--curve: '{name}' holds no curve: {reason}; write one such as {_EXAMPLE}") from None
    if len(points.tokens) != len(points.ms) or sorted(set(points.tokens)) != points.tokens:
        raise ConfigError(
            f"--curve: in '{name}' numbers of tokens must ascend, with one 'ms' for each; write such as {_EXAMPLE}"
        )
    return PassCurve(name, _through(points.tokens, points.ms))


class _Points(BaseModel):
    tokens: list[Annotated[int, Field(ge=1)]] = Field(min_length=1)
    ms: list[Annotated[float, Field(gt=0.0, allow_inf_nan=False)]]


def _through(tokens: list[int], milliseconds: list[float]) -> Callable[[int], float]:
    def of(num_tokens: int) -> float:
        if num_tokens > tokens[-1] and len(tokens) > 1:
            slope = (milliseconds[-1] - milliseconds[-2]) / (tokens[-1] - tokens[-2])
            return milliseconds[-1] + max(0.0, slope) * (num_tokens - tokens[-1])
        return float(np.interp(num_tokens, tokens, milliseconds))

    return of


def _gptoss_h100(num_tokens: int) -> float:
    # Of 32 experts every token wakes 4.
    return 2.6 + 3.04 * (1.0 - (28 / 32) ** num_tokens) + 0.012 * num_tokens


CURVES: dict[str, Callable[[int], float]] = {
    "gptoss-h100": _gptoss_h100,
    "gptoss-spark": _through([*_SPARK_TOKENS], [_SPARK_MS * each for each in _SPARK_RELATIVE]),
    "dense-8b-h100": lambda num_tokens: 6.3 + 0.015 * num_tokens,
}
"""gpt-oss-20b and a dense model of 8 billion parameters on an H100: estimates from the bytes that a pass reads, plus
what is fixed. gpt-oss-20b on a DGX Spark: passes of llama.cpp, measured by others."""
