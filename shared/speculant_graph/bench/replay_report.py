"""What a replay prints: a table for each workload, and how far its drafts and their probabilities held."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from speculant_graph.bench.report import print_report

_PLAIN_WIDTH = 160
_NONE = "–"
_DEPTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24)

_COLUMNS: tuple[tuple[str, Callable[[Mapping[str, Any]], str]], ...] = (
    ("strategy", lambda run: str(run["strategy"])),
    ("budget", lambda run: str(run["budget"])),
    ("tokens\nper step", lambda run: f"{run['mean_accepted_tokens']:.3f}"),
    ("95 %\ninterval", lambda run: "–".join(f"{bound:.2f}" for bound in run["mean_accepted_tokens_interval"])),
    ("× prompt\nlookup", lambda run: _number(run["over_prompt_lookup"], ".2f")),
    ("accepted", lambda run: _number(run["acceptance_rate"], ".1%")),
    ("drafted\nper step", lambda run: f"{run['drafted_per_step']:.2f}"),
    ("empty", lambda run: f"{run['empty_rate']:.1%}"),
    ("expected\n/ actual", lambda run: _number(run["expected_over_actual"], ".2f")),
    ("draft µs\np50 / p99", lambda run: f"{run['draft_us_p50']:.1f} / {run['draft_us_p99']:.1f}"),
    ("learn µs\nper token", lambda run: f"{run['learn_us_per_token']:.2f}"),
    ("relative\nspeed", lambda run: _number(run["relative_speed"], ".2f")),
)


def print_replay(figures: Mapping[str, Any], arguments: Sequence[str], *, as_json: bool) -> None:
    """Print the runs of a replay.

    Args:
        figures: the JSON object without machine and command.
        arguments: command line of the bench.
        as_json: print the object as the last line of standard output.
    """
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = _PLAIN_WIDTH
    results = figures["results"]
    for workload in dict.fromkeys(run["workload"] for run in results):
        runs = [run for run in results if run["workload"] == workload]
        console.print(f"{workload}: {runs[0]['traces']:,} traces, {runs[0]['output_tokens']:,} tokens")
        console.print(_run_table(runs))
        budget = max(run["budget"] for run in runs)
        largest = [run for run in runs if run["budget"] == budget]
        console.print(f"\nshare of steps that accepted so many tokens or more, {budget} nodes")
        console.print(_depth_table(largest))
        if any(run["reliability"] for run in largest):
            console.print(f"\nprobability of a node: predicted → actual (nodes), {budget} nodes")
            console.print(_reliability_table(largest))
        console.print()
    sys.stdout.flush()
    print_report("replay", _rows(figures), figures, arguments, as_json=as_json)


def _run_table(runs: Sequence[Mapping[str, Any]]) -> Table:
    table = _table()
    # A figure that no run has, such as the price without --cost, has no column.
    columns = [(heading, [show(run) for run in runs]) for heading, show in _COLUMNS]
    columns = [(heading, cells) for heading, cells in columns if any(cell != _NONE for cell in cells)]
    for heading, _ in columns:
        table.add_column(heading, justify="left" if heading == "strategy" else "right", no_wrap=True)
    for cells in zip(*(cells for _, cells in columns), strict=True):
        table.add_row(*cells)
    return table


def _depth_table(runs: Sequence[Mapping[str, Any]]) -> Table:
    table = _table()
    deepest = max((row["depth"] for run in runs for row in run["acceptance_by_depth"]), default=0)
    depths = [depth for depth in _DEPTHS if depth <= deepest]
    for heading in ("strategy", *map(str, depths)):
        table.add_column(heading, justify="left" if heading == "strategy" else "right", no_wrap=True)
    for run in runs:
        shares = {row["depth"]: row["share_of_steps"] for row in run["acceptance_by_depth"]}
        table.add_row(str(run["strategy"]), *(f"{shares.get(depth, 0.0):.1%}" for depth in depths))
    return table


def _reliability_table(runs: Sequence[Mapping[str, Any]]) -> Table:
    runs = [run for run in runs if run["reliability"]]
    table = _table()
    table.add_column("")
    for run in runs:
        table.add_column(str(run["strategy"]), justify="right", no_wrap=True)
    bins = [{(row["from"], row["to"]): row for row in run["reliability"]} for run in runs]
    for low, high in sorted({place for rows in bins for place in rows}):
        cells = [rows.get((low, high)) for rows in bins]
        table.add_row(
            f"{low:.1f}–{high:.1f}",
            *(
                _NONE if cell is None else f"{cell['predicted']:.3f} → {cell['actual']:.3f} ({cell['nodes']:,})"
                for cell in cells
            ),
        )
    return table


def _table() -> Table:
    return Table(box=None, pad_edge=False, header_style="")


def _rows(figures: Mapping[str, Any]) -> list[tuple[str, str]]:
    tokens = figures["graph_tokens"]
    rows = [
        ("graph", "none" if tokens is None else f"{tokens:,} tokens, contexts up to {figures['max_order']}"),
        ("learning across sequences", "yes" if figures["online"] else "no"),
    ]
    if figures["shuffled"]:
        rows.append(("outputs", "in random order"))
    if figures["cost"] is not None:
        known = "known to the drafter" if figures["cost_aware"] else "not known to the drafter"
        rows.append(("cost of verifying", f"{figures['cost']}, {known}"))
    return rows


def _number(value: float | None, form: str) -> str:
    return _NONE if value is None else format(value, form)
