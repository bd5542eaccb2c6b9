"""How far a build is: bars on a terminal, nothing elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from speculant_graph.machine import anonymous_bytes
from speculant_graph.view.formatting import PHASE_LABELS

if TYPE_CHECKING:
    from speculant_graph.graph.build.builder import BuildProgress

_RATED = ("tokenize", "count")
_UNITS = ("kB", "MB", "GB", "TB")
_TAKEN = 36
"""Characters of a line beside the note: 10 of the label, 10 of the bar, 4 of the share, up to 8 of the time, blanks."""
_INTERVAL_S = 0.1
_STEADY_S = 0.5


@contextmanager
def show_progress() -> Iterator[Callable[[BuildProgress], None]]:
    """Yield a callback for :class:`~speculant_graph.graph.build.builder.GraphBuilder`; one bar per phase, on stderr."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _ignore
        return
    columns = (
        TextColumn("{task.description:<10}"),
        BarColumn(bar_width=10),
        TextColumn("{task.percentage:>3.0f}%"),
        TextColumn("[dim]{task.fields[note]}"),
        TimeRemainingColumn(compact=True, elapsed_when_finished=True),
    )
    with Progress(*columns, console=console) as bars:
        yield _Bars(bars).show


class _Bars:
    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._task: TaskID | None = None
        self._phase = ""
        self._shown = 0.0
        self._first = (0.0, 0)

    def show(self, progress: BuildProgress) -> None:
        now = time.monotonic()
        if progress.phase != self._phase:
            self._begin(progress, now)
        elif now - self._shown < _INTERVAL_S and progress.done < progress.total:
            return
        self._shown = now
        assert self._task is not None
        # Of standard input nobody knows how much will come.
        total = progress.total or None
        self._bars.update(self._task, completed=progress.done, total=total, note=self._note(progress, now))

    def _begin(self, progress: BuildProgress, now: float) -> None:
        if self._task is not None:
            finished = self._bars.tasks[self._task].completed
            self._bars.update(self._task, completed=finished, total=finished)
        self._phase = progress.phase
        self._first = (now, _tokens_done(progress))
        self._task = self._bars.add_task(PHASE_LABELS[progress.phase], total=None, note="")

    def _note(self, progress: BuildProgress, now: float) -> str:
        parts = []
        if progress.phase == "tokenize":
            parts.append(_size(progress.done, progress.total) if progress.total else _size(progress.done))
        parts.append(f"{_short(progress.num_tokens / 1e6)}M tokens")
        started, before = self._first
        if progress.phase in _RATED and now - started >= _STEADY_S:
            parts.append(f"{_short((_tokens_done(progress) - before) / (now - started) / 1e6)}M/s")
        parts.append(f"{_size(anonymous_bytes())} RAM")
        while len(" ".join(parts)) > self._bars.console.width - _TAKEN and parts:
            parts.pop()  # the bar and the time are worth more
        return " ".join(parts)


def _size(*sizes: int) -> str:
    """Return sizes in bytes in the unit of the last one: ``55.0/100 MB``."""
    power = max(1, min((len(str(sizes[-1])) - 1) // 3, len(_UNITS)))
    return "/".join(_short(size / 1000**power) for size in sizes) + f" {_UNITS[power - 1]}"


def _short(number: float) -> str:
    """Return a number with three digits, or all of those before the point."""
    return f"{number:.{2 if number < 9.995 else 1 if number < 99.95 else 0}f}"


def _tokens_done(progress: BuildProgress) -> int:
    """Return the tokens a phase is through with; a unit of counting is a token of the stream."""
    return progress.done if progress.phase == "count" else progress.num_tokens


def _ignore(_: BuildProgress) -> None:
    pass
