"""What all benches have in common: lists on the command line, progress, and tables and one JSON object at the end."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import AfterValidator, BeforeValidator
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from speculant_graph.machine import describe_machine
from speculant_graph.settings import CommandSettings
from speculant_graph.view.formatting import PHASE_LABELS

if TYPE_CHECKING:
    from speculant_graph.graph.build.builder import BuildProgress

COMMAS = BeforeValidator(lambda value: value.split(",") if isinstance(value, str) else value)
"""Annotation of a list that a command line writes with commas: ``8,16,32``."""
EACH_ONCE = AfterValidator(lambda values: list(dict.fromkeys(values)))
"""Annotation of a list whose repeated values are dropped."""
NONE = "–"
"""Cell of a table where there is no figure."""

_LABEL_CHARACTERS = 42
_BAR_INTERVAL_S = 0.1
_PLAIN_WIDTH = 160
"""Columns of what is no terminal."""


class BenchSettings(CommandSettings):
    """Base of the settings of every bench."""

    json_output: bool = False
    """Print one JSON object as the last line."""


class BenchProgress:
    """Shows one bar for what is being done on a terminal, and a line elsewhere; on standard error.

    It is drawn when there is news, never by a thread of its own, which would be in the times that are measured.
    """

    def __init__(self, console: Console, bars: Progress) -> None:
        """Take over a bar that is not shown yet."""
        self._console = console
        self._bars = bars
        self._task = bars.add_task("", total=None)
        self._shown_s = 0.0
        self._build_label = ""
        self._show_build: Callable[[int, int], None] = lambda done, total: None

    def begin(self, label: str) -> Callable[[int, int], None]:
        """Name what comes next, and return what takes how much of it is done, and how much there is to do."""
        text = f"{label[:_LABEL_CHARACTERS]:<{_LABEL_CHARACTERS}}"

        def show(done: int, total: int) -> None:
            if time.monotonic() - self._shown_s >= _BAR_INTERVAL_S or 0 <= total <= done:
                self._shown_s = time.monotonic()
                self._bars.update(self._task, description=text, completed=done, total=total or None, refresh=True)

        show(0, 0)
        self.tell(f"{label} …")
        return show

    def show_build(self, build: BuildProgress) -> None:
        """Show how far a build is."""
        label = f"corpus: {PHASE_LABELS[build.phase]}"
        if label != self._build_label:
            self._build_label = label
            self._show_build = self.begin(label)
        self._show_build(build.done, build.total)

    def tell(self, line: str) -> None:
        """Print a line, where no bar is shown."""
        if not self._console.is_terminal:
            self._console.print(line, soft_wrap=True)


@contextmanager
def show_progress() -> Iterator[BenchProgress]:
    """Show a bar for as long as the block lasts."""
    console = Console(stderr=True, highlight=False, markup=False)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=10),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeRemainingColumn(compact=True),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal, auto_refresh=False
    ) as bars:
        yield BenchProgress(console, bars)


@dataclass(frozen=True, slots=True)
class ReportTable:
    """A table of a report; its first column is aligned to the left, the others to the right."""

    headings: Sequence[str]
    """One for each column; they may have several lines."""
    rows: Sequence[Sequence[str]]
    """Cells, as many in each row as there are headings."""
    title: str = ""
    """A line above it."""

    def drawn(self) -> Table:
        """Return it as it is printed."""
        table = Table(box=None, pad_edge=False, header_style="", show_header=any(self.headings))
        for column, heading in enumerate(self.headings):
            table.add_column(heading, justify="right" if column else "left", no_wrap=table.show_header)
        for row in self.rows:
            table.add_row(*row)
        return table


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
        tables: printed before the rows.
    """
    machine = describe_machine()
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = _PLAIN_WIDTH
    for table in (*tables, ReportTable(("", ""), rows, f"bench {name}")):
        if table.title:
            console.print(table.title)
        console.print(table.drawn())
        console.print()
    console.print(f"on {machine['cpu']}, {machine['cores']} cores, Python {machine['python']}")
    sys.stdout.flush()
    if as_json:
        report = {**figures, "machine": machine, "command": ["speculant", "bench", name, *arguments]}
        sys.stdout.write(json.dumps(report) + "\n")


def shown(value: float | None, form: str) -> str:
    """Return a figure as a cell of a table, such as of the form ``.2f``."""
    return NONE if value is None else format(value, form)
