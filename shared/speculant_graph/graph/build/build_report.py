"""What a build took."""

from __future__ import annotations

import datetime
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from speculant_graph.errors import ConfigError
from speculant_graph.machine import anonymous_bytes

Phase = Literal["tokenize", "train", "calibrate", "count", "save"]

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


@dataclass(slots=True)
class BuildReport:
    """Time and memory, noted while a build runs."""

    tokenize_s: float = 0.0
    """Wall seconds from the start, loading the tokenizer included, to the token stream on disk."""
    train_s: float = 0.0
    """Wall seconds of training the neural model; 0 if there is none."""
    calibrate_s: float = 0.0
    """Wall seconds of learning from a held-out slice; 0 if it was left out."""
    count_s: float = 0.0
    """Wall seconds from there to sorted, counted and linked arrays on disk."""
    save_s: float = 0.0
    """Wall seconds of checksums and the description."""
    total_s: float = 0.0
    """All of it, and waiting for the disk."""
    count_cpu_s: float = 0.0
    """CPU seconds of counting, all threads together."""
    peak_anon_bytes: int = 0
    """Most memory of this process that was not backed by files, seen every 20 ms."""

    @property
    def build_seconds(self) -> float:
        """What a graph file states of it; 0 if the same input is to give the same bytes."""
        spent = self.tokenize_s + self.train_s + self.calibrate_s + self.count_s
        return 0.0 if _EPOCH in os.environ else round(spent, 3)

    @contextmanager
    def measuring(self, phase: Phase) -> Iterator[None]:
        """Add the time of a block to a phase."""
        wall, cpu = time.monotonic(), time.process_time()
        try:
            yield
        finally:
            field = f"{phase}_s"
            setattr(self, field, round(getattr(self, field) + time.monotonic() - wall, 3))
            if phase == "count":
                self.count_cpu_s = round(self.count_cpu_s + time.process_time() - cpu, 3)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Note the time of a whole build, and the peak of anonymous memory meanwhile."""
        started, ended = time.monotonic(), threading.Event()

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
            self.total_s = round(time.monotonic() - started, 3)
