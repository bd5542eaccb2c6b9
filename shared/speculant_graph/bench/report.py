"""How a bench ends: tables for people and one JSON object for machines."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from speculant_graph.machine import describe_machine

_PLAIN_WIDTH = 160
"""Columns of what is no terminal."""


@dataclass(frozen=True, slots=True)
class ReportTable:
    """A table of a report."""

    headings: Sequence[str]
    """One for each column; they may have several lines."""
    rows: Sequence[Sequence[str]]
    """Cells, as many in each row as there are headings."""
    title: str = ""
    """A line above it."""


def print_report(
    name: str,
    rows: Sequence[tuple[str, str]],
    figures: Mapping[str, object],
    arguments: Sequence[str],
    *,
    as_json: bool,
    tables: Sequence[ReportTable] = (),
) -> None:
    """Print what a bench measured.

    Args:
        name: the bench.
        rows: what was measured and the figure, for people.
        figures: the keys of the JSON object; machine and command are added.
        arguments: command line of the bench.
        as_json: print the object as the last line of standard output.
        tables: printed before the rows; their first column is aligned to the left, the others to the right.
    """
    machine = describe_machine()
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = _PLAIN_WIDTH
    for table in tables:
        if table.title:
            console.print(table.title)
        console.print(_drawn(table))
        console.print()
    summary = Table(box=None, pad_edge=False, show_header=False, title_justify="left", title=f"bench {name}")
    summary.add_column()
    summary.add_column(justify="right")
    for row in rows:
        summary.add_row(*row)
    console.print(summary)
    console.print(f"on {machine['cpu']}, {machine['cores']} cores, Python {machine['python']}")
    sys.stdout.flush()
    if as_json:
        report = {**figures, "machine": machine, "command": ["speculant", "bench", name, *arguments]}
        sys.stdout.write(json.dumps(report) + "\n")


def _drawn(table: ReportTable) -> Table:
    drawn = Table(box=None, pad_edge=False, header_style="", show_header=any(table.headings))
    for column, heading in enumerate(table.headings):
        drawn.add_column(heading, justify="right" if column else "left", no_wrap=True)
    for row in table.rows:
        drawn.add_row(*row)
    return drawn
