"""Draws curves as an SVG picture, with panels side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from speculant_graph.errors import ConfigError

_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM, _GAP = 380, 240, 46, 66, 54, 20
_MOST_IN_A_ROW, _MOST_LINES = 2, 5
_COLORS = ("#767676", "#b35900", "#005fb8", "#7b3fa0", "#1a7f37")
_DASHES = ("2 4", "7 4", "none", "9 3 2 3", "4 2")
"""Dash patterns, which distinguish the curves without colours."""


@dataclass(frozen=True, slots=True)
class Curve:
    """A curve with one value per position of the horizontal axis."""

    label: str
    values: list[float]


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel of curves that show the same quantity and have equally many values."""

    title: str
    curves: list[Curve]


def write_picture(path: Path, panels: Sequence[Panel], *, across: str = "slice", up: str = "tokens a step") -> None:
    """Write panels, which all show the same set of curves, to an SVG file.

    Args:
        path: the file.
        panels: at least one panel; the legend shows the labels of the first panel's curves.
        across: label of the horizontal axis.
        up: label of the vertical axis.

    Raises:
        ConfigError: the file can't be written.
    """
    try:
        path.write_text(drawn(panels, across=across, up=up), encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"can't write {path} ({error.strerror or error}); check the folder and its permissions"
        ) from error


def drawn(panels: Sequence[Panel], *, across: str, up: str) -> str:
    """Return the SVG text of the picture that :func:`write_picture` writes."""
    columns = min(len(panels), _MOST_IN_A_ROW)
    width, height = columns * _WIDTH + _GAP, _TOP + math.ceil(len(panels) / columns) * _HEIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="12" fill="#1f2328">',
        f"<title>{escape(up)} by {escape(across)}</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    x = float(_LEFT)
    for index, curve in enumerate(panels[0].curves):
        parts.append(f'<path d="M{x:g} 24h26" {_stroke(index)}/>')
        parts.append(f'<text x="{x + 32:g}" y="28">{escape(curve.label)}</text>')
        x += 60 + 6.6 * len(curve.label)
    for number, panel in enumerate(panels):
        row, column = divmod(number, columns)
        parts += _panel(panel, column * _WIDTH, _TOP + row * _HEIGHT, across, up)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(panel: Panel, left: float, top: float, across: str, up: str) -> list[str]:
    values = [value for curve in panel.curves for value in curve.values]
    marks = _marks(min(values), max(values))
    x0, y0 = left + _LEFT, top + _HEIGHT - _BOTTOM
    width, height = _WIDTH - _LEFT - _GAP, _HEIGHT - _BOTTOM - 26
    count = len(panel.curves[0].values)

    def x_of(index: int) -> float:
        return x0 + width * (index / (count - 1) if count > 1 else 0.5)

    def y_of(value: float) -> float:
        return y0 - height * (value - marks[0]) / (marks[-1] - marks[0])

    parts = [f'<text x="{x0:g}" y="{top:g}" font-weight="bold">{escape(panel.title)}</text>']
    for mark in marks:
        y = y_of(mark)
        parts.append(f'<path d="M{x0:g} {y:.1f}h{width:g}" stroke="#d8dee4"/>')
        parts.append(f'<text x="{x0 - 6:g}" y="{y + 4:.1f}" text-anchor="end">{mark:g}</text>')
    step = max(1, math.ceil(count / 10))
    for index in range(0, count, step):
        parts.append(f'<text x="{x_of(index):.1f}" y="{y0 + 16:g}" text-anchor="middle">{index + 1}</text>')
    parts.append(f'<text x="{x0 + width / 2:g}" y="{y0 + 32:g}" text-anchor="middle">{escape(across)}</text>')
    parts.append(
        f'<text x="{left + 12:g}" y="{y0 - height / 2:g}" text-anchor="middle" '
        f'transform="rotate(-90 {left + 12:g} {y0 - height / 2:g})">{escape(up)}</text>'
    )
    for index, curve in enumerate(panel.curves):
        points = " ".join(f"{x_of(place):.1f},{y_of(value):.1f}" for place, value in enumerate(curve.values))
        parts.append(f'<polyline points="{points}" {_stroke(index)}/>')
    return parts


def _stroke(index: int) -> str:
    color, dashes = _COLORS[index % len(_COLORS)], _DASHES[index % len(_DASHES)]
    return f'fill="none" stroke="{color}" stroke-width="2" stroke-dasharray="{dashes}"'


def _marks(least: float, most: float) -> list[float]:
    """Return axis marks: evenly spaced round numbers that enclose all values."""
    span = max(most - least, 1e-3)
    unit = 10.0 ** math.floor(math.log10(span / _MOST_LINES))
    step = next(unit * each for each in (1, 2, 5, 10, 20) if span / (unit * each) <= _MOST_LINES)
    first, last = math.floor(least / step), math.ceil(most / step)
    return [round(number * step, 6) for number in range(first, max(last, first + 1) + 1)]
