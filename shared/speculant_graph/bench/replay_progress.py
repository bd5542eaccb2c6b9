"""How far a replay is: a bar on a terminal, a line for every finished run elsewhere; on standard error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

_LABEL_CHARACTERS = 40


class ReplayProgress:
    """Shows one bar for all there is to do."""

    def __init__(self, console: Console, bars: Progress) -> None:
        """Take over a bar that is not shown yet."""
        self._console = console
        self._bars = bars
        self._task = bars.add_task("", total=None)

    def show(self, label: str, done: int, total: int) -> None:
        """Say what is being done and how much of it is."""
        self._bars.update(self._task, description=label[:_LABEL_CHARACTERS], completed=done, total=total or None)

    def tell(self, line: str) -> None:
        """Note something that is finished, where no bar shows it."""
        if not self._console.is_terminal:
            self._console.print(line, soft_wrap=True)


@contextmanager
def show_progress() -> Iterator[ReplayProgress]:
    """Show a bar for as long as the block lasts."""
    console = Console(stderr=True, highlight=False, markup=False)
    columns = (
        TextColumn("{task.description:<40}", markup=False),
        BarColumn(bar_width=10),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        yield ReplayProgress(console, bars)
