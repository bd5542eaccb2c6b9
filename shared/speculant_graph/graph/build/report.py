"""What a build took."""

from __future__ import annotations

import datetime
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from speculant_graph.errors import ConfigError
from speculant_graph.machine import anonymous_bytes

Phase = Literal["tokenize", "calibrate", "count", "save"]

_SAMPLE_S = 0.02
_EPOCH = "SOURCE_DATE_EPOCH"  # the convention for builds that give the same bytes again


def built_at() -> str:
    """Return the time of a build, ISO 8601 in UTC; that of SOURCE_DATE_EPOCH if the variable is set.

    Raises:
        ConfigError: the variable is no number of seconds.
    """
    epoch = os.environ.get(_EPOCH)
    try:
        moment = time.time() if epoch is None else int(epoch)
        return datetime.datetime.fromtimestamp(moment, datetime.UTC).isoformat(timespec="seconds")
    except (OSError, OverflowError, ValueError) as error:
        raise ConfigError(f"{_EPOCH} is {epoch!r}; set it to seconds since 1970, or unset it") from error


@dataclass(frozen=True, slots=True)
class BuildReport:
    """Time and memory."""

    tokenize_s: float
    """Wall seconds from the start, loading the tokenizer included, to the token stream on disk."""
    calibrate_s: float
    """Wall seconds of learning from a held-out slice; 0 if it was left out."""
    count_s: float
    """Wall seconds from there to sorted, counted and linked arrays on disk."""
    save_s: float
    """Wall seconds of checksums, the description and waiting for the disk."""
    total_s: float
    """All of it."""
    count_cpu_s: float
    """CPU seconds of counting, all threads together."""
    peak_anon_bytes: int
    """Most memory of this process that was not backed by files, seen every 20 ms."""


@dataclass(slots=True)
class Stopwatch:
    """Measures the phases of a build while it runs."""

    started: float = field(default_factory=time.monotonic)
    """Value of ``time.monotonic`` at the beginning."""
    peak_anon_bytes: int = 0
    _walls: dict[str, float] = field(default_factory=dict)
    _cpus: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def measuring(self, phase: Phase) -> Iterator[None]:
        """Add the time of a block to a phase."""
        wall, cpu = time.monotonic(), time.process_time()
        try:
            yield
        finally:
            self._walls[phase] = self._walls.get(phase, 0.0) + time.monotonic() - wall
            self._cpus[phase] = self._cpus.get(phase, 0.0) + time.process_time() - cpu

    @contextmanager
    def watching_memory(self) -> Iterator[None]:
        """Note the peak of anonymous memory during a block."""
        ended = threading.Event()

        def watch() -> None:
            while True:
                self.peak_anon_bytes = max(self.peak_anon_bytes, anonymous_bytes())
                if ended.wait(_SAMPLE_S):
                    return

        watcher = threading.Thread(target=watch, name="speculant-memory", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            ended.set()
            watcher.join()

    @property
    def total_s(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self.started

    @property
    def build_seconds(self) -> float:
        """What a graph file states of it; 0 if the same input is to give the same bytes."""
        return round(self.total_s, 3) if _EPOCH not in os.environ else 0.0

    def report(self) -> BuildReport:
        """Return what was measured."""
        return BuildReport(
            tokenize_s=round(self._walls.get("tokenize", 0.0), 3),
            calibrate_s=round(self._walls.get("calibrate", 0.0), 3),
            count_s=round(self._walls.get("count", 0.0), 3),
            save_s=round(self._walls.get("save", 0.0), 3),
            total_s=round(self.total_s, 3),
            count_cpu_s=round(self._cpus.get("count", 0.0), 3),
            peak_anon_bytes=self.peak_anon_bytes,
        )
