"""How far a bench is: a bar on a terminal, lines elsewhere; on standard error."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from speculant_graph.view.formatting import PHASE_LABELS

if TYPE_CHECKING:
    from speculant_graph.graph.build.builder import BuildProgress

_LABEL_CHARACTERS = 42
_BAR_INTERVAL_S = 0.1


class BenchProgress:
    """Shows one bar for what is being done.

    It is drawn when there is news, never by a thread of its own, which would be in the times that are measured.
    """

    def __init__(self, console: Console, bars: Progress) -> None:
        """Take over a bar that is not shown yet."""
        self._console = console
        self._bars = bars
        self._task = bars.add_task("", total=None)
        self._shown_s = time.monotonic()
        self._build_label = ""

    def begin(self, label: str) -> None:
        """Name what comes next and may take a while, before it is known how much there is to do."""
        self._draw(label, 0, 0)
        self.tell(f"{label} …")

    def show(self, label: str, done: int, total: int) -> None:
        """Show what is being done and how much of it is; cheap enough to be called after every step."""
        if time.monotonic() - self._shown_s >= _BAR_INTERVAL_S or 0 < total <= done:
            self._draw(label, done, total)

    def teller(self, label: str) -> Callable[[int, int], None]:
        """Begin something and return what takes how much is done, and how much there is to do."""
        self.begin(label)
        return lambda done, total: self.show(label, done, total)

    def show_build(self, build: BuildProgress) -> None:
        """Show how far a build is."""
        label = f"corpus: {PHASE_LABELS[build.phase]}"
        if label != self._build_label:
            self._build_label = label
            self.begin(label)
        self.show(label, build.done, build.total)

    def tell(self, line: str) -> None:
        """Print a line, where no bar is shown."""
        if not self._console.is_terminal:
            self._console.print(line, soft_wrap=True)

    def _draw(self, label: str, done: int, total: int) -> None:
        self._shown_s = time.monotonic()
        text = f"{label[:_LABEL_CHARACTERS]:<{_LABEL_CHARACTERS}}"
        self._bars.update(self._task, description=text, completed=done, total=total or None, refresh=True)


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
    bars = Progress(*columns, console=console, transient=True, disable=not console.is_terminal, auto_refresh=False)
    with bars:
        yield BenchProgress(console, bars)
