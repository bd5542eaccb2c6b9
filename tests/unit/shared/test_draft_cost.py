"""Cost curves: their points, what lies between and beyond them, and files of them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculant_graph.draft.cost import COST_CURVES, MAX_POINT, CostCurve
from speculant_graph.errors import ConfigError


@st.composite
def curves(draw: st.DrawFn) -> CostCurve:
    tokens = draw(st.sets(st.integers(2, 60), max_size=6))
    costs = st.lists(st.floats(0.1, 10.0), min_size=len(tokens) + 1, max_size=len(tokens) + 1)
    return CostCurve.from_points([1, *sorted(tokens)], draw(costs))


def straight(curve: CostCurve, number: int) -> float:
    """Return the cost on the line through the two points around a number, or through the last two."""
    points = list(zip(curve.tokens, curve.relative, strict=True))
    for (before, low), (after, high) in pairwise(points):
        if before <= number <= after:
            return low + (high - low) * (number - before) / (after - before)
    if len(points) == 1:
        return points[0][1]
    (before, low), (last, high) = points[-2:]
    return high + max(0.0, (high - low) / (last - before)) * (number - last)


@given(curve=curves(), num_tokens=st.integers(1, 150))
def test_costs_lie_on_the_line_and_never_fall(curve: CostCurve, num_tokens: int) -> None:
    expected, highest = [], 0.0
    for number in range(1, num_tokens + 1):
        highest = max(highest, straight(curve, number))
        expected.append(highest / curve.relative[0])
    table = curve.table(num_tokens)
    assert table.shape == (num_tokens + 1,)
    assert table[1:].tolist() == pytest.approx(expected, abs=1e-9)
    assert table[0] == table[1] == 1.0
    assert curve.at(num_tokens) == table[num_tokens]


def test_between_beyond_and_falling_points() -> None:
    curve = CostCurve((1, 3, 5), (2.0, 4.0, 3.0))
    assert curve.table(7).tolist() == [1.0, 1.0, 1.5, 2.0, 2.0, 2.0, 2.0, 2.0]
    assert CostCurve((1, 3), (1.0, 2.0)).at(5) == 3.0
    assert CostCurve((1,), (7.0,)).at(4_000) == 1.0


@pytest.mark.parametrize(
    ("tokens", "relative", "message"),
    [
        ((), (), r"as many relative costs \(0\) as numbers of tokens \(0\), and at least one; add"),
        ((1, 2), (1.0,), r"as many relative costs \(1\) as numbers of tokens \(2\)"),
        ((2, 3), (1.0, 2.0), "ascend from 1"),
        ((1, 2, 2), (1.0, 2.0, 3.0), "ascend from 1"),
        ((1, 5, 3), (1.0, 2.0, 3.0), "ascend from 1"),
        ((1, MAX_POINT + 1), (1.0, 2.0), "whole numbers up to 4096, .* change 4097"),
        ((1.0, 2.0), (1.0, 2.0), "whole numbers up to 4096, such as 1, 2, 4, in a list; change 1.0"),
        ((True, 2), (1.0, 2.0), "change True"),
        (None, (1.0, 2.0), "in a list; change None"),
        ((1, "9" * 99), (1.0, 2.0), "change '9{59} …$"),
        (np.array([1.0, 2.0]), (1.0, 2.0), "whole numbers"),
        ((1, 2), (1.0, 0.0), "positive and finite, such as 1.0, 1.2, 1.5, in a list; change 0.0"),
        ((1, 2), (float("nan"), 1.0), "positive and finite, .* change nan"),
        ((1, 2), (float("inf"), 1.0), "positive and finite, .* change inf"),
        ((1, 2), ("1", 2.0), "change '1'"),
        ((1, 2), 1.0, "change 1.0"),
        ((1, 2), (1, 10**400), "positive and finite"),
    ],
)
def test_points_that_make_no_curve(tokens: tuple[int, ...], relative: tuple[float, ...], message: str) -> None:
    for make in (CostCurve, CostCurve.from_points):
        with pytest.raises(ConfigError, match=message) as raised:
            make(tokens, relative)
        assert "\n" not in str(raised.value)


def test_points_in_lists_arrays_and_other_units() -> None:
    curve = CostCurve((1, 2), (1.0, 1.5))
    assert CostCurve.from_points([1, 2], [1, 1.5]) == curve
    assert CostCurve.from_points(np.array([1, 2]), np.array([1.0, 1.5])) == curve  # type: ignore[arg-type]
    milliseconds = CostCurve((1, 2), (40.0, 60.0))
    assert milliseconds.table(3).tolist() == curve.table(3).tolist() == [1.0, 1.0, 1.5, 2.0]


def test_the_last_point_may_be_the_largest() -> None:
    assert CostCurve((1, MAX_POINT), (1.0, 2.0)).at(MAX_POINT) == 2.0


def test_curves_that_come_with_the_project() -> None:
    assert set(COST_CURVES) == {"flat", "dense", "cpu-moe", "moe"}
    for name, curve in COST_CURVES.items():
        table = curve.table(1_025)
        assert (np.diff(table[1:]) >= 0).all()
        assert table[1] == 1.0
        assert (table[64] == 1.0) == (name == "flat")


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "curve.json"
    path.write_text('{"tokens": [1, 2, 4], "relative": [1, 1.25, 1.5], "note": "measured"}', encoding="utf-8")
    assert CostCurve.from_file(path) == CostCurve.from_file(str(path)) == CostCurve((1, 2, 4), (1.0, 1.25, 1.5))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "holds no cost curve"),
        (b"\xff\xfe\x00", "holds no cost curve"),
        (b"[1, 2]", "holds no cost curve"),
        (b'{"tokens": [1, 2]}', "holds no cost curve"),
        (b'{"tokens": [1, null], "relative": [1, 2]}', "whole numbers .* change None"),
        (b'{"tokens": [2, 4], "relative": [1, 2]}', r"ascend from 1, such as 1, 2, 4, 8; change \(2, 4\)"),
        (b'{"tokens": [1, 2], "relative": [1]}', "add what is missing"),
        (b'{"tokens": [1, 2], "relative": [1, Infinity]}', "positive and finite, .* change inf"),
        (b"[" * 100_000, "holds no cost curve"),
    ],
)
def test_a_file_without_a_curve(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "curve.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=message) as raised:
        CostCurve.from_file(path)
    assert str(raised.value).startswith(str(path))


def test_a_file_that_can_not_be_read(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.json"):
        with pytest.raises(ConfigError, match=r"can't read the cost curve .*; check the path"):
            CostCurve.from_file(path)
