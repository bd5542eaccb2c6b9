"""Cost curves: their points, interpolation, extrapolation, and files."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculant_graph.budget import CURVES, CostCurve, curve_of
from speculant_graph.budget.pass_cost import MAX_POINT
from speculant_graph.errors import ConfigError


@st.composite
def curves(draw: st.DrawFn) -> CostCurve:
    tokens = draw(st.sets(st.integers(2, 60), max_size=6))
    costs = st.lists(st.floats(0.1, 10.0), min_size=len(tokens) + 1, max_size=len(tokens) + 1)
    return CostCurve((1, *sorted(tokens)), tuple(draw(costs)))


def straight(curve: CostCurve, number: int) -> float:
    """Return the cost by linear interpolation, beyond the last point by extrapolation."""
    points = list(zip(curve.tokens, curve.ms, strict=True))
    for (before, low), (after, high) in pairwise(points):
        if before <= number <= after:
            return low + (high - low) * (number - before) / (after - before)
    if len(points) == 1:
        return points[0][1]
    (before, low), (last, high) = points[-2:]
    return high + max(0.0, (high - low) / (last - before)) * (number - last)


@given(curve=curves(), num_tokens=st.integers(1, 150), num_rows=st.integers(1, 20))
def test_costs_lie_on_the_line_and_never_fall(curve: CostCurve, num_tokens: int, num_rows: int) -> None:
    expected, highest = [], 0.0
    for number in range(1, num_tokens + 1):
        highest = max(highest, straight(curve, number))
        expected.append(highest / 1e3)
    seconds = curve.seconds(num_rows, num_tokens)
    least = min(num_rows, num_tokens)
    assert seconds[least:].tolist() == pytest.approx(expected[least - 1 :], abs=1e-12)
    assert (seconds[:least] == seconds[least]).all()
    assert curve.relative(num_tokens) == pytest.approx(expected[-1] / expected[0])


@pytest.mark.parametrize(
    ("tokens", "ms", "message"),
    [
        ((1, 2), (1.0,), "2 numbers of tokens and 1 times"),
        ((2, 3), (1.0, 2.0), "ascend from 1"),
        ((1, MAX_POINT + 1), (1.0, 2.0), "point 2: .* less than or equal to 4096"),
        ((True, 2), (1.0, 2.0), "point 1"),
        ((1, 2), (1.0, 0.0), "point 2: .* greater than 0"),
        ((1, 2), (float("nan"), 1.0), "point 1: .* finite"),
    ],
)
def test_points_that_make_no_curve(tokens: tuple[int, ...], ms: tuple[float, ...], message: str) -> None:
    # Promised behaviour: the message names the error and shows a valid curve.
    with pytest.raises(ConfigError, match=rf"{message}.*; make it look like") as raised:
        CostCurve(tokens, ms)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", CURVES)
def test_curves_that_come_with_the_project(name: str) -> None:
    seconds = curve_of(name, "--cost").seconds(1, 1_025)
    assert (np.diff(seconds) >= 0).all()
    assert (seconds[64] == seconds[1]) == (name == "flat")


def test_a_name_that_is_neither_a_curve_nor_a_file() -> None:
    with pytest.raises(ConfigError) as caught:
        curve_of("fast", "--cost")
    assert caught.value.field == "--cost"


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "curve.json"
    path.write_text('{"tokens": [1, 2, 4], "ms": [1, 1.25, 1.5], "note": "measured"}', encoding="utf-8")
    assert CostCurve.from_file(path) == CostCurve.from_file(str(path)) == CostCurve((1, 2, 4), (1.0, 1.25, 1.5))


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"\xff\xfe\x00",
        b'{"tokens": [1, 2], "ms": [1, Infinity]}',
        b'{"tokens": [1], "ms": [3.0]}',
        b'{"tokens": [1, 2], "ms": ["1", "2"]}',
        b'{"tokens": [1, 2], "ms": [1, true]}',
        b"[" * 100_000,
        b'{"tokens": [1, 2], "relative": [1, 2]}',
    ],
)
def test_a_file_without_a_curve(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "curve.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as raised:
        CostCurve.from_file(path)
    assert str(raised.value).startswith(str(path))
