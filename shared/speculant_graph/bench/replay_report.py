"""What a replay prints: a table for each workload, how far drafts and probabilities held, and what the columns say."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from speculant_graph.bench.report import print_report
from speculant_graph.view.wording import counted

_PLAIN_WIDTH = 160
_NONE = "–"
_DEPTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24)
_NAMING, _GAP = 2, 2
"""Columns that name a run; blanks between columns."""


@dataclass(frozen=True, slots=True)
class _Column:
    heading: str
    show: Callable[[Mapping[str, Any]], str]
    meaning: str


_COLUMNS = (
    _Column("strategy", lambda run: str(run["strategy"]), "how drafts are made"),
    _Column("budget", lambda run: str(run["budget"]), "most nodes (drafted tokens) of a step"),
    _Column(
        "tokens\nper step",
        lambda run: f"{run['mean_accepted_tokens']:.3f}",
        "output tokens over steps of the model (mean accepted tokens, MAT), its own token of every step included; "
        "plain decoding has 1",
    ),
    _Column(
        "95 %\ninterval",
        lambda run: "–".join(f"{bound:.2f}" for bound in run["mean_accepted_tokens_interval"]),
        "where the tokens per step would lie for other traces of this kind",
    ),
    _Column(
        "× prompt\nlookup",
        lambda run: _number(run["over_prompt_lookup"], ".2f"),
        "tokens per step over those of prompt-lookup with the same budget",
    ),
    _Column("accepted", lambda run: _number(run["acceptance_rate"], ".1%"), "share of drafted tokens that were right"),
    _Column("drafted\nper step", lambda run: f"{run['drafted_per_step']:.2f}", "drafted tokens of a step, on average"),
    _Column("without\na draft", lambda run: f"{run['empty_rate']:.1%}", "share of steps with nothing drafted"),
    _Column(
        "expected\n/ actual",
        lambda run: _number(run["expected_over_actual"], ".2f"),
        "accepted tokens that the drafts' own probabilities promised, over those that were; 1 is right, above it "
        "promises too much",
    ),
    _Column(
        "draft µs\np50 / p99",
        lambda run: f"{run['draft_us_p50']:.1f} / {run['draft_us_p99']:.1f}",
        "microseconds of making a draft: median, and what 99 of 100 drafts do not exceed",
    ),
    _Column(
        "learn µs\nper token",
        lambda run: f"{run['learn_us_per_token']:.2f}",
        "microseconds of telling the drafter what was accepted, per token",
    ),
    _Column(
        "relative\nspeed",
        lambda run: _number(run["relative_speed"], ".2f"),
        "tokens per unit of the cost of verifying, over plain decoding; above 1 drafts pay",
    ),
)  # fmt: skip


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
        console.print(
            f"{workload}: {counted(runs[0]['traces'], 'trace')}, {counted(runs[0]['output_tokens'], 'output token')}"
        )
        for columns in _shares(_shown_columns(runs), runs, console.width):
            console.print(_run_table(columns, runs))
        _print_details(console, runs)
        console.print()
    console.print("what the columns say")
    console.print(_meanings(results))
    console.print()
    sys.stdout.flush()
    print_report("replay", _rows(figures), figures, arguments, as_json=as_json)


def _print_details(console: Console, runs: Sequence[Mapping[str, Any]]) -> None:
    """Print what would be too much for every budget: for the largest one."""
    budget = max(run["budget"] for run in runs)
    largest = [run for run in runs if run["budget"] == budget]
    if any(run["drafted"] for run in largest):
        console.print(
            f"\nhow far drafts were right: share of steps that accepted so many drafted tokens (budget {budget})"
        )
        console.print(_depth_table(largest))
    if any(run["reliability"] for run in largest):
        console.print(
            "\nhow far probabilities can be trusted: drafted tokens by the probability that the strategy gave them, on "
            f"average → the share that was right (how many; budget {budget})"
        )
        console.print(_reliability_table(largest))


def _shown_columns(runs: Sequence[Mapping[str, Any]]) -> list[_Column]:
    """Return the columns without those of figures that no run has, such as the price without --cost."""
    return [column for column in _COLUMNS if any(column.show(run) != _NONE for run in runs)]


def _shares(columns: Sequence[_Column], runs: Sequence[Mapping[str, Any]], width: int) -> Iterator[Sequence[_Column]]:
    """Yield columns for as many tables as the width asks for, each with what names a run."""
    texts = {column: [*column.heading.split("\n"), *(column.show(run) for run in runs)] for column in columns}
    widths = {column: _GAP + max(map(len, texts[column])) for column in columns}
    names, share = columns[:_NAMING], list[_Column]()
    for column in columns[_NAMING:]:
        if share and sum(widths[each] for each in [*names, *share, column]) > width + _GAP:
            yield [*names, *share]
            share = []
        share.append(column)
    yield [*names, *share]


def _run_table(columns: Sequence[_Column], runs: Sequence[Mapping[str, Any]]) -> Table:
    table = _table()
    for column in columns:
        table.add_column(column.heading, justify="left" if column.heading == "strategy" else "right", no_wrap=True)
    for run in runs:
        table.add_row(*(column.show(run) for column in columns))
    return table


def _meanings(runs: Sequence[Mapping[str, Any]]) -> Table:
    table = _table(show_header=False)
    for column in _shown_columns(runs):
        table.add_row(f"  {column.heading}".replace("\n", " "), column.meaning)
    return table


def _depth_table(runs: Sequence[Mapping[str, Any]]) -> Table:
    table = _table()
    deepest = max((row["depth"] for run in runs for row in run["acceptance_by_depth"]), default=0)
    depths = [depth for depth in _DEPTHS if depth <= deepest]
    for heading in ("strategy", *(f"≥ {depth}" for depth in depths)):
        table.add_column(heading, justify="left" if heading == "strategy" else "right", no_wrap=True)
    for run in runs:
        shares = {row["depth"]: row["share_of_steps"] for row in run["acceptance_by_depth"]}
        table.add_row(str(run["strategy"]), *(f"{shares.get(depth, 0.0):.1%}" for depth in depths))
    return table


def _reliability_table(runs: Sequence[Mapping[str, Any]]) -> Table:
    runs = [run for run in runs if run["reliability"]]
    table = _table()
    table.add_column("probability")
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


def _table(*, show_header: bool = True) -> Table:
    return Table(box=None, pad_edge=False, header_style="", show_header=show_header)


def _rows(figures: Mapping[str, Any]) -> list[tuple[str, str]]:
    tokens = figures["graph_tokens"]
    graph = (
        "none" if tokens is None else f"{tokens:,} tokens, contexts of up to {counted(figures['max_order'], 'token')}"
    )
    rows = [("graph", graph), ("traces learn from earlier ones", "yes" if figures["online"] else "no")]
    if figures["shuffled"]:
        rows.append(("tokens of the outputs", "in random order"))
    if figures["cost"] is not None:
        known = "the drafter knows it" if figures["cost_aware"] else "the drafter does not know it"
        rows.append(("cost of verifying", f"{figures['cost']}; {known}"))
    return rows


def _number(value: float | None, form: str) -> str:
    return _NONE if value is None else format(value, form)
