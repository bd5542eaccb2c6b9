"""A picture of a replay: by budget the tokens per step or, if steps have a price, the speed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from speculant_graph.extras import needed_for
from speculant_graph.view.wording import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WIDTH, _HEIGHT = 4.2, 3.2
"""Inches of one workload's diagram."""
_MOST_COLUMNS = 3
_DPI = 150
_WIDEST_SHIFT = 0.05
"""Between the points of two strategies, as a power of two of the budget."""
_MOST_TICK_LABELS = 10
_MOST_UNEQUAL = 4.0
"""Diagrams share a scale unless one needs so many times as much of it as another."""
_LONGEST_TITLE = 40
_MARKERS = "osD^vP*X"


def plot_replay(results: Sequence[Mapping[str, Any]], path: Path, file_format: str) -> None:
    """Draw one diagram for each workload and in it one line, with its intervals, for each strategy.

    Args:
        results: figures of the runs; all of them or none have a relative speed.
        path: the file, whatever its ending.
        file_format: ``png`` or ``svg``.

    Raises:
        ModuleNotFoundError: the extra ``viz`` is not installed.
    """
    with needed_for("drawing pictures", "viz"):
        from matplotlib import rc_context
        from matplotlib.figure import Figure

    is_priced = results[0]["relative_speed"] is not None
    what = "relative_speed" if is_priced else "mean_accepted_tokens"
    by_workload: dict[str, list[Mapping[str, Any]]] = {}
    for run in results:
        by_workload.setdefault(run["workload"], []).append(run)
    strategies = list(dict.fromkeys(run["strategy"] for run in results))
    limits = [_limits(runs, what) for runs in by_workload.values()]
    heights = [high - low for low, high in limits]
    is_shared = max(heights) <= _MOST_UNEQUAL * min(heights)
    everything = min(low for low, _ in limits), max(high for _, high in limits)
    num_columns = min(len(by_workload), _MOST_COLUMNS)
    num_rows = math.ceil(len(by_workload) / num_columns)
    with rc_context({"svg.fonttype": "none", "text.parse_math": False}):
        figure = Figure(figsize=(_WIDTH * num_columns, _HEIGHT * num_rows + 0.4), layout="constrained")
        for place, (workload, runs) in enumerate(by_workload.items(), start=1):
            axes = figure.add_subplot(num_rows, num_columns, place)
            _draw(axes, runs, strategies, what)
            axes.set_title(f"{workload[:_LONGEST_TITLE]} ({counted(runs[0]['traces'], 'trace')})", fontsize=10)
            axes.set_ylim(everything if is_shared else limits[place - 1])
        notes = "bars: 95 % intervals; dashed: plain decoding"
        if not is_shared:
            notes += "; each diagram has a scale of its own"
        figure.supxlabel(f"budget: most drafted tokens of a step (logarithmic)\n{notes}", fontsize=9)
        figure.supylabel("relative speed" if is_priced else "tokens per step", fontsize=9)
        handles, labels = figure.axes[0].get_legend_handles_labels()
        num_entries = min(len(labels), 3 * num_columns)
        figure.legend(handles, labels, loc="outside upper center", ncols=num_entries, frameon=False, fontsize=9)
        figure.savefig(path, format=file_format, dpi=_DPI, facecolor="white")


def tick_labels(budgets: Sequence[int]) -> list[str]:
    """Return a label for each of ascending budgets; empty where it would run into the one before."""
    least_distance = math.log2(budgets[-1] / budgets[0]) / _MOST_TICK_LABELS
    labels: list[str] = []
    labelled = 0.0
    for budget in budgets:
        is_free = not labelled or math.log2(budget / labelled) >= least_distance
        labels.append(str(budget) if is_free else "")
        labelled = budget if is_free else labelled
    return labels


def _draw(axes: Axes, runs: Sequence[Mapping[str, Any]], strategies: Sequence[str], what: str) -> None:
    budgets = sorted({run["budget"] for run in runs})
    narrowest = min((math.log2(high / low) for low, high in pairwise(budgets)), default=1.0)
    # Side by side, as equal strategies would hide each other, but never nearer to another budget.
    step = min(_WIDEST_SHIFT, narrowest / (3 * len(strategies)))
    axes.axhline(1.0, color="#7b8794", linewidth=1, linestyle="--")  # plain decoding
    for number, strategy in enumerate(strategies):
        of_strategy = [run for run in runs if run["strategy"] == strategy]
        values = [run[what] for run in of_strategy]
        bounds = [run[f"{what}_interval"] for run in of_strategy]
        # The interval of a skewed sample need not hold its mean, and bars of negative length are refused.
        below = [max(0.0, value - low) for value, (low, _) in zip(values, bounds, strict=True)]
        above = [max(0.0, high - value) for value, (_, high) in zip(values, bounds, strict=True)]
        shift = 2 ** (step * (number - (len(strategies) - 1) / 2))
        axes.errorbar(
            [shift * run["budget"] for run in of_strategy], values, (below, above),
            label=strategy, color=f"C{number}", marker=_MARKERS[number % len(_MARKERS)], markersize=4, capsize=2,
            linewidth=1.5, elinewidth=0.8,
        )  # fmt: skip
    axes.set_xscale("log", base=2)
    margin = 2 ** max(0.25, 0.06 * math.log2(budgets[-1] / budgets[0]))
    axes.set_xlim(budgets[0] / margin, budgets[-1] * margin)
    axes.set_xticks(budgets, tick_labels(budgets), fontsize=9)
    axes.minorticks_off()
    axes.grid(visible=True, color="#e4e7eb")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _limits(runs: Sequence[Mapping[str, Any]], what: str) -> tuple[float, float]:
    """Return the ends of a scale that shows all intervals and plain decoding, 1."""
    shown = [1.0, *(end for run in runs for end in (run[what], *run[f"{what}_interval"]))]
    room = 0.05 * (max(shown) - min(shown)) or 0.05
    return min(shown) - room, max(shown) + room
