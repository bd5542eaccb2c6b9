"""How a bench ends: a table for people and one JSON object for machines."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from speculant_graph.machine import describe_machine


def print_report(
    name: str,
    rows: Sequence[tuple[str, str]],
    figures: Mapping[str, object],
    arguments: Sequence[str],
    *,
    as_json: bool,
) -> None:
    """Print what a bench measured.

    Args:
        name: the bench.
        rows: what was measured and the figure, for people.
        figures: the keys of the JSON object; machine and command are added.
        arguments: command line of the bench.
        as_json: print the object as the last line of standard output.
    """
    machine = describe_machine()
    table = Table(box=None, pad_edge=False, show_header=False, title_justify="left", title=f"bench {name}")
    table.add_column()
    table.add_column(justify="right")
    for what, figure in rows:
        table.add_row(what, figure)
    console = Console(highlight=False, markup=False)
    console.print(table)
    console.print(f"on {machine['cpu']}, {machine['cores']} cores, Python {machine['python']}")
    if as_json:
        report = {**figures, "machine": machine, "command": ["speculant", "bench", name, *arguments]}
        sys.stdout.write(json.dumps(report) + "\n")
