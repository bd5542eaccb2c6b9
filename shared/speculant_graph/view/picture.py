"""A neighbourhood as a still picture."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from speculant_graph.extras import needed_for
from speculant_graph.view.glyphs import visible
from speculant_graph.view.neighbourhood import Neighbourhood, Step
from speculant_graph.view.wording import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ROW, _BOX, _GAP = 0.3, 0.2, 0.75
"""Inches from row to row, height of a box, and width between columns."""
_MARGIN, _HEAD, _LEAST_WIDTH = 0.3, 1.0, 6.0
"""Inches round the tree, of the heading, and of the whole picture at least."""
_TEXT, _SMALL = 9.0, 7.5
"""Sizes of type, in points."""
_CHARACTER = 0.615 * _TEXT / 72
"""Width of a character of the first size, in inches, with room for rounding: all of the font have the same."""
_LONGEST = 30
"""Most characters shown of a token or context."""
_DPI, _MOST_PIXELS = 150, 30_000
"""Resolution of a PNG file, lower where a side would be longer than this."""

_INK, _MUTED, _ROOT, _ROOT_EDGE, _NO_ORDER = "#16191d", "#5a6470", "#e9e4fb", "#8f73e6", "#7d8894"
_ORDERS = ((12, 143, 128), (47, 111, 224), (138, 31, 196))
"""Red, green, blue of the lowest, the middle and the highest order."""


@dataclass(frozen=True, slots=True)
class _Box:
    """A node in its place; inches from the top left corner of the tree."""

    label: str
    share: str
    x: float
    y: float
    children: tuple[tuple[Step, _Box], ...]

    @property
    def width(self) -> float:
        return _width(self.label, self.share)


def draw_picture(neighbourhood: Neighbourhood, name: str, path: Path, file_format: Literal["png", "svg"]) -> None:
    """Draw the tree: the wider an edge, the likelier the token; its colour is the order of the context.

    Args:
        neighbourhood: what to draw.
        name: of the graph, for the heading.
        path: the file, whatever its ending.
        file_format: what to write.

    Raises:
        ModuleNotFoundError: the extra ``viz`` is not installed.
    """
    with needed_for("drawing pictures", "viz"):
        from matplotlib import rc_context
        from matplotlib.figure import Figure

    root, num_rows, right = _placed(neighbourhood)
    width, height = max(right + 2 * _MARGIN, _LEAST_WIDTH), num_rows * _ROW + _HEAD + _MARGIN
    # Type stays type in an SVG file: it can be searched, and the reader's fonts draw what this one lacks.
    with rc_context({"svg.fonttype": "none", "font.family": "DejaVu Sans Mono"}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure = Figure(figsize=(width, height))
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_axis_off()
        axes.set_xlim(-_MARGIN, width - _MARGIN)
        axes.set_ylim(height - _HEAD, -_HEAD)
        _write(axes, 0, 0.25 - _HEAD, visible(name), 11, _INK, weight="bold")
        _write(axes, 0, 0.47 - _HEAD, _subtitle(neighbourhood), _SMALL, _MUTED)
        _write_legend(axes, 0.69 - _HEAD, neighbourhood)
        _draw(axes, root, _ROOT, _ROOT_EDGE, len(neighbourhood.orders))
        figure.savefig(path, format=file_format, dpi=min(_DPI, _MOST_PIXELS / max(width, height)), facecolor="white")


def _placed(neighbourhood: Neighbourhood) -> tuple[_Box, int, float]:
    """Return the root in its place, the number of rows and the right end of the tree."""
    root_label = _root_label(neighbourhood)
    widths: list[float] = []
    num_rows = 0

    def measure(label: str, share: str, steps: Sequence[Step], depth: int) -> None:
        if depth == len(widths):
            widths.append(0.0)
        widths[depth] = max(widths[depth], _width(label, share))
        for step in steps:
            measure(_label(step.text), _share(step), step.children, depth + 1)

    def place(label: str, share: str, steps: Sequence[Step], depth: int) -> _Box:
        nonlocal num_rows
        children = tuple((step, place(_label(step.text), _share(step), step.children, depth + 1)) for step in steps)
        if children:
            y = (children[0][1].y + children[-1][1].y) / 2
        else:
            y = (num_rows + 0.5) * _ROW
            num_rows += 1
        return _Box(label, share, sum(widths[:depth]) + depth * _GAP, y, children)

    measure(root_label, "", neighbourhood.steps, 0)
    root = place(root_label, "", neighbourhood.steps, 0)
    return root, num_rows, sum(widths) + (len(widths) - 1) * _GAP


def _draw(axes: Axes, box: _Box, face: str, edge: str, max_order: int) -> None:
    from matplotlib.patches import FancyBboxPatch, PathPatch
    from matplotlib.path import Path as Curve

    corner, style = (box.x, box.y - _BOX / 2), "round,pad=0,rounding_size=0.06"
    axes.add_patch(
        FancyBboxPatch(corner, box.width, _BOX, boxstyle=style, facecolor=face, edgecolor=edge, linewidth=1, zorder=2)
    )
    _write(axes, box.x + 0.75 * _CHARACTER, box.y, box.label, _TEXT, _INK)
    _write(axes, box.x + box.width - 0.75 * _CHARACTER, box.y, box.share, _SMALL, _MUTED, ha="right")
    start = box.x + box.width
    for step, child in box.children:
        colour = _colour(step.order, max_order)
        middle = (start + child.x) / 2
        points = [(start, box.y), (middle, box.y), (middle, child.y), (child.x, child.y)]
        curve = Curve(points, [Curve.MOVETO, Curve.CURVE4, Curve.CURVE4, Curve.CURVE4])
        line_width = 0.6 + 6 * step.probability
        axes.add_patch(PathPatch(curve, fill=False, edgecolor=colour, linewidth=line_width, alpha=0.55, zorder=1))
        _draw(axes, child, "white", colour, max_order)


def _write_legend(axes: Axes, y: float, neighbourhood: Neighbourhood) -> None:
    title = "order of the context:  "
    _write(axes, 0, y, title, _SMALL, _MUTED)
    x = len(title) * _CHARACTER * _SMALL / _TEXT
    for order in range(1 if neighbourhood.context else 0, len(neighbourhood.orders) + 1):
        _write(axes, x, y, f"■ {order or 'none'}", _SMALL, _colour(order, len(neighbourhood.orders)))
        x += (4 if order else 7) * _CHARACTER * _SMALL / _TEXT


def _write(
    axes: Axes, x: float, y: float, text: str, size: float, colour: str, ha: str = "left", weight: str = "normal"
) -> None:
    # Dollar signs are text here, not mathematics.
    axes.text(x, y, text, size=size, color=colour, ha=ha, va="center", weight=weight, zorder=3, parse_math=False)


def _width(label: str, share: str) -> float:
    return _CHARACTER * (len(label) + 1.5 + (1 + len(share) * _SMALL / _TEXT if share else 0))


def _label(text: str) -> str:
    shown = visible(text) or "∅"
    return shown if len(shown) <= _LONGEST else shown[:_LONGEST] + "…"


def _root_label(neighbourhood: Neighbourhood) -> str:
    shown = visible("".join(token.text for token in neighbourhood.context)) or "anywhere"
    return shown if len(shown) <= _LONGEST else "…" + shown[-_LONGEST:]


def _share(step: Step) -> str:
    return "<0.1%" if step.probability < 0.0005 else f"{100 * step.probability:.3g}%"


def _colour(order: int, max_order: int) -> str:
    if not order:
        return _NO_ORDER
    place = 2 * (order - 1) / (max_order - 1) if max_order > 1 else 2.0
    low = min(int(place), 1)
    channels = zip(_ORDERS[low], _ORDERS[low + 1], strict=True)
    return "#" + "".join(f"{round(start + (end - start) * (place - low)):02x}" for start, end in channels)


def _subtitle(neighbourhood: Neighbourhood) -> str:
    order = len(neighbourhood.context)
    if order:
        known = "the last token" if order == 1 else f"the last {order} tokens"
        what = f"{counted(neighbourhood.num_successors, 'different token')} seen after {known}"
    else:
        what = "no end of the prompt is in the graph: " if neighbourhood.num_prompt_tokens else "no prompt: "
        what += "its most frequent tokens"
    return f"{what}; {neighbourhood.num_steps:,} shown with what follows"
