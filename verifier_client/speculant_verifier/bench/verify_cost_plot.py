"""A picture of what passes cost: milliseconds, and times those of one token, by the tokens of a row."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from speculant_graph.extras import needed_for

_WIDTH, _HEIGHT = 4.6, 3.6
"""Inches of one diagram."""
_DPI = 150
_MARKERS = "osD^vP*X"


def plot_costs(figures: Mapping[str, Any], path: Path, file_format: str) -> None:
    """Draw milliseconds, and how many times those of one token, by tokens of a row: one line for each batch.

    Args:
        figures: the figures of the bench.
        path: the file, whatever its ending.
        file_format: ``png`` or ``svg``.

    Raises:
        ModuleNotFoundError: the extra ``viz`` is not installed.
    """
    with needed_for("drawing pictures", "viz"):
        from matplotlib import rc_context
        from matplotlib.figure import Figure

    points = figures["points"]
    batches = sorted({point["batch"] for point in points})
    tokens = sorted({point["nodes"] for point in points})
    with rc_context({"svg.fonttype": "none", "text.parse_math": False}):
        figure = Figure(figsize=(2 * _WIDTH, _HEIGHT), layout="constrained")
        for place, (key, label) in enumerate((("ms", "milliseconds"), ("relative", "times a pass of 1 token")), 1):
            axes = figure.add_subplot(1, 2, place)
            for number, batch in enumerate(batches):
                mine = sorted((point["nodes"], point[key]) for point in points if point["batch"] == batch)
                axes.plot(
                    [nodes for nodes, _ in mine], [value for _, value in mine], label=f"batch {batch}",
                    color=f"C{number}", marker=_MARKERS[number % len(_MARKERS)], markersize=4, linewidth=1.5,
                )  # fmt: skip
            axes.set_xscale("log", base=2)
            axes.set_xticks(tokens, [str(number) for number in tokens], fontsize=9)
            axes.minorticks_off()
            axes.set_ylim(bottom=0)
            axes.set_ylabel(label, fontsize=9)
            axes.grid(visible=True, color="#e4e7eb")
            axes.set_axisbelow(True)
            axes.spines[["top", "right"]].set_visible(False)
        figure.axes[0].legend(frameon=False, fontsize=9)
        where = f"{figures['model']}, {figures['dtype']} on {figures['device']}"
        figure.suptitle(f"one forward pass of {where}, {figures['context']} tokens in the cache", fontsize=10)
        figure.supxlabel("tokens of a row: the last one and the drafted nodes (logarithmic)", fontsize=9)
        figure.savefig(path, format=file_format, dpi=_DPI, facecolor="white")
