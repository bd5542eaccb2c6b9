"""Pictures of benches: lines over a logarithmic axis, one diagram beside another."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from speculant_graph.errors import ConfigError
from speculant_graph.extras import needed_for

_ENDINGS = (".png", ".svg")
_WIDTH, _HEIGHT = 4.4, 3.4
"""Inches of one diagram."""
_MOST_COLUMNS = 3
_DPI = 150
_MARKERS = "osD^vP*X"


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a diagram."""

    label: str
    """What it is, the same in all diagrams of a picture."""
    x: Sequence[int]
    """Ascending, at least 1."""
    y: Sequence[float]
    """As many."""
    intervals: Sequence[tuple[float, float]] = ()
    """Ends of a bar at each point; none: no bars."""


@dataclass(frozen=True, slots=True)
class Diagram:
    """One diagram of a picture."""

    lines: Sequence[Line]
    """At least one."""
    title: str = ""
    """Above it."""
    y_label: str = ""
    """Beside it."""


def check_plot(path: Path) -> None:
    """Refuse a picture that can't be written before minutes of work, not after them.

    Raises:
        ConfigError: no picture can be written there.
        ModuleNotFoundError: the extra ``viz`` is not installed.
    """
    if path.is_dir():
        raise ConfigError(f"--plot: {path} is a folder; name a file in it, such as {path / 'picture.png'}")
    if path.suffix.lower() not in _ENDINGS:
        raise ConfigError(f"--plot: {path} ends in none of {', '.join(_ENDINGS)}; choose one of these")
    try:
        # Permissions alone are too little, on some file systems and for root.
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise ConfigError(
            f"--plot: can't write to the folder {path.parent} ({error.strerror}); make it or choose another path"
        ) from error
    with needed_for("drawing pictures", "viz"):
        import matplotlib.figure  # noqa: F401


def plot_lines(
    path: Path, diagrams: Sequence[Diagram], x_label: str, *, title: str = "", baseline: float | None = None
) -> None:
    """Draw diagrams into a file, which is replaced.

    Args:
        path: ``.png`` or ``.svg``, as :func:`check_plot` takes it.
        diagrams: at least one; the legend is that of the first.
        x_label: below all of them.
        title: above all of them.
        baseline: a dashed line at this height.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    from speculant_graph.graph.container import replacing

    columns = min(len(diagrams), _MOST_COLUMNS)
    rows = math.ceil(len(diagrams) / columns)
    with rc_context({"svg.fonttype": "none", "text.parse_math": False}):
        figure = Figure(figsize=(_WIDTH * columns, _HEIGHT * rows), layout="constrained")
        for index, diagram in enumerate(diagrams, start=1):
            axes = figure.add_subplot(rows, columns, index)
            if baseline is not None:
                axes.axhline(baseline, color="#7b8794", linewidth=1, linestyle="--")
            for i, line in enumerate(diagram.lines):
                axes.errorbar(
                    line.x, line.y, _bars(line), label=line.label, color=f"C{i}", capsize=2, linewidth=1.5,
                    marker=_MARKERS[i % len(_MARKERS)], markersize=4, elinewidth=0.8,
                )  # fmt: skip
            ticks = sorted({x for line in diagram.lines for x in line.x})
            axes.set_xscale("log", base=2)
            axes.set_xticks(ticks, [str(tick) for tick in ticks], fontsize=9)
            axes.minorticks_off()
            axes.set_title(diagram.title, fontsize=10)
            axes.set_ylabel(diagram.y_label, fontsize=9)
            axes.grid(visible=True, color="#e4e7eb")
            axes.set_axisbelow(True)
            axes.spines[["top", "right"]].set_visible(False)
        figure.axes[0].legend(frameon=False, fontsize=9)
        figure.suptitle(title, fontsize=10)
        figure.supxlabel(x_label, fontsize=9)
        with replacing(path) as temporary:
            figure.savefig(temporary, format=path.suffix.lower().removeprefix("."), dpi=_DPI, facecolor="white")


def _bars(line: Line) -> tuple[list[float], list[float]] | None:
    if not line.intervals:
        return None
    # The interval of a skewed sample need not hold its mean, and bars of negative length are refused.
    ends = list(zip(line.y, line.intervals, strict=True))
    return [max(0.0, y - low) for y, (low, _) in ends], [max(0.0, high - y) for y, (_, high) in ends]
