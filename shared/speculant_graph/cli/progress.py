"""How far a build is: bars on a terminal, nothing elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from speculant_graph.view.formatting import PHASE_LABELS

if TYPE_CHECKING:
    from speculant_graph.graph.build.builder import BuildProgress

_INTERVAL_S = 0.1


@contextmanager
def show_progress() -> Iterator[Callable[[BuildProgress], None]]:
    """Yield a callback for :class:`~speculant_graph.graph.build.builder.GraphBuilder`; one bar per phase, on stderr."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    columns = (
        TextColumn("{task.description:<10}"),
        BarColumn(bar_width=10),
        TextColumn("{task.percentage:>3.0f}%"),
        TextColumn("[dim]{task.fields[tokens]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=console) as bars:
        yield _Bars(bars).show


class _Bars:
    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._task: TaskID | None = None
        self._phase = ""
        self._shown = 0.0

    def show(self, progress: BuildProgress) -> None:
        now = time.monotonic()
        if self._task is None or progress.phase != self._phase:
            self._begin(progress.phase)
        elif now - self._shown < _INTERVAL_S and progress.done < progress.total:
            return
        self._shown = now
        assert self._task is not None
        tokens = f"{progress.num_tokens / 1e6:.1f}M tokens"
        # Of standard input it is not known how much will come.
        self._bars.update(self._task, completed=progress.done, total=progress.total or None, tokens=tokens)

    def _begin(self, phase: str) -> None:
        if self._task is not None:
            finished = self._bars.tasks[self._task].completed
            self._bars.update(self._task, completed=finished, total=finished)
        self._phase = phase
        self._task = self._bars.add_task(PHASE_LABELS[phase], total=None, tokens="")
