"""A picture of a replay: tokens per step by budget."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from speculant_graph.extras import needed_for

_WIDTH, _HEIGHT = 4.2, 3.2
"""Inches of one workload's diagram."""
_MOST_COLUMNS = 3
_DPI = 150
_SHIFT = 0.05
"""Between the points of two strategies, as a power of two of the budget."""


def plot_replay(results: Sequence[Mapping[str, Any]], path: Path, file_format: str) -> None:
    """Draw one diagram for each workload and in it one line, with its intervals, for each strategy.

    Args:
        results: figures of the runs.
        path: the file, whatever its ending.
        file_format: ``png`` or ``svg``.

    Raises:
        ModuleNotFoundError: the extra ``viz`` is not installed.
    """
    with needed_for("drawing pictures", "viz"):
        from matplotlib import rc_context
        from matplotlib.figure import Figure

    workloads = list(dict.fromkeys(run["workload"] for run in results))
    strategies = list(dict.fromkeys(run["strategy"] for run in results))
    budgets = sorted({run["budget"] for run in results})
    num_columns = min(len(workloads), _MOST_COLUMNS)
    num_rows = math.ceil(len(workloads) / num_columns)
    with rc_context({"svg.fonttype": "none", "text.parse_math": False}):
        figure = Figure(figsize=(_WIDTH * num_columns, _HEIGHT * num_rows + 0.4), layout="constrained")
        for place, workload in enumerate(workloads, start=1):
            axes = figure.add_subplot(num_rows, num_columns, place)
            for number, strategy in enumerate(strategies):
                runs = [run for run in results if (run["workload"], run["strategy"]) == (workload, strategy)]
                means = [run["mean_accepted_tokens"] for run in runs]
                bounds = [run["mean_accepted_tokens_interval"] for run in runs]
                # The interval of a skewed sample need not hold its mean, and bars of negative length are refused.
                below = [max(0.0, mean - low) for mean, (low, _) in zip(means, bounds, strict=True)]
                above = [max(0.0, high - mean) for mean, (_, high) in zip(means, bounds, strict=True)]
                # Side by side, as equal strategies would hide each other.
                shift = 2 ** (_SHIFT * (number - (len(strategies) - 1) / 2))
                axes.errorbar(
                    [shift * run["budget"] for run in runs], means, (below, above),
                    label=strategy, color=f"C{number}", marker="o", markersize=4, capsize=2, linewidth=1.5,
                )  # fmt: skip
            axes.set_title(workload, fontsize=10)
            axes.set_xscale("log", base=2)
            axes.set_xticks(budgets, [str(budget) for budget in budgets])
            axes.minorticks_off()
            axes.set_ylim(bottom=1.0)  # a step without drafts
            axes.grid(visible=True, color="#e4e7eb")
            axes.set_axisbelow(True)
            axes.spines[["top", "right"]].set_visible(False)
        figure.supxlabel("most nodes of a draft", fontsize=9)
        figure.supylabel("tokens per step", fontsize=9)
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=min(len(labels), 5), frameon=False, fontsize=9)
        figure.savefig(path, format=file_format, dpi=_DPI, facecolor="white")
