"""How far a bench of drafting is: a bar on a terminal, lines elsewhere; on standard error."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from speculant_graph.view.wording import PHASE_LABELS

if TYPE_CHECKING:
    from speculant_graph.graph.builder import BuildProgress

_LABEL_CHARACTERS = 42
_BAR_INTERVAL_S = 0.1
_LINE_INTERVAL_S = 10.0


class BenchProgress:
    """Shows one bar for what is being done.

    It is drawn when there is news, never by a thread of its own, which would be in the times that are measured.
    """

    def __init__(self, console: Console, bars: Progress) -> None:
        """Take over a bar that is not shown yet."""
        self._console = console
        self._bars = bars
        self._task = bars.add_task("", total=None)
        self._shown = self._told = time.monotonic()
        self._build_phase = ""

    def begin(self, label: str) -> None:
        """Say what comes next and may take a while, before it is known how much there is to do."""
        self._draw(label, 0, 0)
        self.tell(f"{label} …")

    def show(self, label: str, done: int, total: int) -> None:
        """Say what is being done and how much of it is; cheap enough to be told of every step."""
        now = time.monotonic()
        if now - self._shown >= _BAR_INTERVAL_S or 0 < total <= done:
            self._draw(label, done, total)
        if now - self._told >= _LINE_INTERVAL_S and total:
            self.tell(f"{label}: {done / total:.0%}")

    def teller(self, label: str) -> Callable[[int, int], None]:
        """Begin something and return what is to be told of how much is done, and of how much there is to do."""
        self.begin(label)
        return lambda done, total: self.show(label, done, total)

    def show_build(self, build: BuildProgress) -> None:
        """Say how far a build is."""
        label = f"corpus: {PHASE_LABELS[build.phase]}"
        if build.phase != self._build_phase:
            self._build_phase = build.phase
            self.begin(label)
        self.show(label, build.done, build.total)

    def tell(self, line: str) -> None:
        """Note something that is finished, where no bar shows it."""
        if not self._console.is_terminal:
            self._console.print(line, soft_wrap=True)
            self._told = time.monotonic()

    def _draw(self, label: str, done: int, total: int) -> None:
        self._shown = time.monotonic()
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
