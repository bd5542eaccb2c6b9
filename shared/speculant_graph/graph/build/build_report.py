"""Measures the time and memory of a build."""

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
_EPOCH = "SOURCE_DATE_EPOCH"  # the convention for reproducible builds


def built_at() -> str:
    """Return the current time, or the time in SOURCE_DATE_EPOCH if it is set, as ISO 8601 in UTC.

    Raises:
        ConfigError: SOURCE_DATE_EPOCH is not a number of seconds.
    """
    epoch = os.environ.get(_EPOCH)
    try:
        moment = time.time() if epoch is None else int(epoch)
        return datetime.datetime.fromtimestamp(moment, datetime.UTC).isoformat(timespec="seconds")
    except (OSError, OverflowError, ValueError) as error:
        raise ConfigError(f"{_EPOCH} is {epoch!r}; set it to seconds since 1970, or unset it") from error


@dataclass(slots=True)
class BuildReport:
    """Time and memory of a build, recorded while it runs."""

    tokenize_s: float = 0.0
    """Wall-clock seconds until the token stream is on disk, including the time to load the tokenizer."""
    train_s: float = 0.0
    """Wall-clock seconds to train the neural model; 0 without a model."""
    calibrate_s: float = 0.0
    """Wall-clock seconds to calibrate on a held-out slice; 0 if calibration was skipped."""
    count_s: float = 0.0
    """Wall-clock seconds to sort and count, until the linked arrays are on disk."""
    save_s: float = 0.0
    """Wall-clock seconds to compute checksums and write metadata."""
    total_s: float = 0.0
    """Wall-clock seconds of the whole build, including waits for the disk."""
    count_cpu_s: float = 0.0
    """CPU seconds of counting, summed over all threads."""
    peak_anon_bytes: int = 0
    """Peak memory of this process in bytes, without memory backed by files; sampled every 20 ms."""

    @property
    def build_seconds(self) -> float:
        """Build time in seconds, as written to the graph file; 0 if SOURCE_DATE_EPOCH asks for a reproducible file."""
        spent = self.tokenize_s + self.train_s + self.calibrate_s + self.count_s
        return 0.0 if _EPOCH in os.environ else round(spent, 3)

    @contextmanager
    def measuring(self, phase: Phase) -> Iterator[None]:
        """Measure the time of the ``with`` block, and add it to the time of a phase."""
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
        """Record the time and the peak anonymous memory of a whole build."""
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
