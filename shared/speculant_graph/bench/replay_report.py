"""How a replay is shown: a table for each workload, and a picture."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from speculant_graph.bench.plot import Diagram, Line, plot_lines
from speculant_graph.bench.report import ReportTable, print_report
from speculant_graph.view.formatting import counted

_NONE = "–"
_COLUMNS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "strategy": lambda run: str(run["strategy"]),
    "budget": lambda run: str(run["budget"]),
    "tokens\nper step": lambda run: f"{run['mean_accepted_tokens']:.3f}",
    "95 %\ninterval": lambda run: "–".join(f"{bound:.2f}" for bound in run["mean_accepted_tokens_interval"]),
    "× prompt\nlookup": lambda run: _shown(run["over_prompt_lookup"], ".2f"),
    "accepted": lambda run: _shown(run["acceptance_rate"], ".1%"),
    "drafted\nper step": lambda run: f"{run['drafted_per_step']:.2f}",
    "draft\nµs": lambda run: f"{run['draft_us_p50']:.1f}",
    "relative\nspeed": lambda run: _shown(run["relative_speed"], ".2f"),
}
"""Heading of a column -> its cell of a run."""


def print_replay(figures: Mapping[str, Any], arguments: Sequence[str], *, as_json: bool) -> None:
    """Print the runs of a replay; see :func:`~speculant_graph.bench.report.print_report`."""
    tables = _tables(figures["results"])
    print_report("replay", _rows(figures), figures, arguments, as_json=as_json, tables=tables)


def _tables(results: Sequence[Mapping[str, Any]]) -> list[ReportTable]:
    """Return a table for each workload, without columns that no run has a figure of."""
    tables = []
    for workload in dict.fromkeys(run["workload"] for run in results):
        runs = [run for run in results if run["workload"] == workload]
        columns = {
            heading: [cell(run) for run in runs]
            for heading, cell in _COLUMNS.items()
            if any(cell(run) != _NONE for run in runs)
        }
        title = (
            f"{workload}: {counted(runs[0]['traces'], 'trace')}, {counted(runs[0]['output_tokens'], 'output token')}"
        )
        tables.append(ReportTable(list(columns), list(zip(*columns.values(), strict=True)), title))
    return tables


def _rows(figures: Mapping[str, Any]) -> list[tuple[str, str]]:
    tokens = figures["graph_tokens"]
    graph = (
        "none" if tokens is None else f"{tokens:,} tokens, contexts of up to {counted(figures['max_order'], 'token')}"
    )
    rows = [
        ("tokens per step", "output tokens over steps of the model; plain decoding has 1"),
        ("95 % interval", "for other traces of this kind"),
        ("graph", graph),
        ("traces learn from earlier ones", "yes" if figures["online"] else "no"),
    ]
    if figures["cost"] is not None:
        known = "the drafter knows it" if figures["cost_aware"] else "the drafter does not know it"
        rows.append(("cost of verifying", f"{figures['cost']}; {known}"))
        rows.append(("relative speed", "tokens per unit of this cost, over plain decoding"))
    return rows


def plot_replay(path: Path, results: Sequence[Mapping[str, Any]]) -> None:
    """Draw a diagram for each workload and in it a line, with its intervals, for each strategy."""
    is_priced = results[0]["relative_speed"] is not None
    key, label = ("relative_speed", "relative speed") if is_priced else ("mean_accepted_tokens", "tokens per step")
    lines: dict[str, list[Line]] = {}
    for workload, strategy in dict.fromkeys((run["workload"], run["strategy"]) for run in results):
        runs = [run for run in results if (run["workload"], run["strategy"]) == (workload, strategy)]
        bars = [tuple(run[f"{key}_interval"]) for run in runs]
        lines.setdefault(workload, []).append(
            Line(strategy, [run["budget"] for run in runs], [run[key] for run in runs], bars)
        )
    plot_lines(
        path,
        [Diagram(of_workload, title=workload, y_label=label) for workload, of_workload in lines.items()],
        "budget: most drafted tokens of a step\nbars: 95 % intervals; dashed: plain decoding",
        baseline=1.0,
    )


def _shown(value: float | None, form: str) -> str:
    return _NONE if value is None else format(value, form)
