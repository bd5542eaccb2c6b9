"""A progress bar for builds: on a terminal it moves, elsewhere it is silent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from speculant_graph.graph.builder import BuildProgress

_LABELS = {"tokenize": "reading and tokenising", "count": "counting n-grams", "save": "saving"}


@contextmanager
def show_progress(what: str) -> Iterator[Callable[[BuildProgress], None]]:
    """Yield a callback for :class:`~speculant_graph.graph.builder.GraphBuilder`; one bar per phase, on stderr."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description:<24}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TextColumn("[dim]{task.fields[note]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        tasks: dict[str, int] = {}

        def report(progress: BuildProgress) -> None:
            task = tasks.get(progress.phase)
            if task is None:
                label = _LABELS.get(progress.phase, progress.phase)
                task = tasks[progress.phase] = bars.add_task(label, total=None, note=what)
            note = f"{progress.num_tokens:,} tokens" if progress.num_tokens else what
            bars.update(task, completed=progress.done, total=progress.total, note=note)  # type: ignore[arg-type]

        yield report
