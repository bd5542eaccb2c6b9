"""Writes finished requests to files, by a thread of its own. Nothing here needs torch.

Files hold one :class:`~speculant_verifier.records.record.RequestRecord` a line, in JSON. They hold users' texts, and
only this user may read them. ``failures-*.jsonl`` has every failure, ``replay-*.jsonl`` a sample of the others.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Self

from loguru import logger

from speculant_graph.config_learning import RecordConfig
from speculant_graph.errors import ConfigError
from speculant_verifier.records.lines import FAILURES, REPLAY, line_of
from speculant_verifier.records.record import RequestRecord
from speculant_verifier.records.reservoir import Reservoir
from speculant_verifier.records.rotated_lines import RotatedLines

MAX_WAITING = 4_000_000
"""Numbers of records kept in memory while the disk is slow, about 40 bytes each; further requests are lost."""


@dataclass(frozen=True, slots=True)
class WriterStatistics:
    """What a writer did since it was made. What is in none of the last three still waits."""

    recorded: int
    """Requests that it was given."""
    written: int
    """Those handed to the operating system."""
    passed_over: int
    """Those that were no failures, and not drawn for replay."""
    lost: int
    """Those that could not be written."""
    failures: int
    """Failures among those that were written."""
    num_tenants: int
    """Tenants of those that were written."""


class RecordWriter:
    """Writes records to a folder.

    Safe to use from several threads, and several processes may use one folder. The death of this process loses what
    came since the last time that the thread wrote; lines are whole but for, at worst, the last one of a file. Nothing
    raises once it is made: what can't be written is counted, and a warning says so once until it works again.
    """

    def __init__(self, config: RecordConfig, *, flush_s: float = 1.0) -> None:
        """Make the folder if need be.

        Args:
            config: it names a folder.
            flush_s: seconds after which records are written.

        Raises:
            ConfigError: the folder can't be made.
        """
        assert config.folder is not None
        try:
            self._failures = RotatedLines(config.folder, FAILURES, config.max_bytes)
            self._replay = RotatedLines(config.folder, REPLAY, config.max_bytes)
        except OSError as error:
            raise ConfigError(
                f"{config.folder} can't be used for records ({error.strerror}); "
                "check permissions, or name another folder"
            ) from error
        self._config, self._flush_s = config, flush_s
        self._reservoir: Reservoir | None = None  # made by the thread, as it reads what is there
        self._lock = threading.Lock()  # of what waits and the counts
        self._writing = threading.Lock()
        self._waiting: list[RequestRecord] = []
        self._num_waiting = 0
        self._recorded = self._written = self._passed_over = self._lost = self._num_failures = 0
        self._tenants: set[str] = set()
        self._is_failing = self._is_closed = False
        self._wake = threading.Event()
        self._worker = threading.Thread(target=self._work, name="records", daemon=True)
        self._worker.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def statistics(self) -> WriterStatistics:
        """Counts since the writer was made."""
        with self._lock:
            return WriterStatistics(
                self._recorded, self._written, self._passed_over, self._lost, self._num_failures, len(self._tenants)
            )

    def record(self, record: RequestRecord) -> None:
        """Take one; the disk is not touched. After :meth:`close` it is counted as lost."""
        size = len(record.prompt) + sum(4 + 2 * len(row) for row in record.top_token_ids)
        with self._lock:
            self._recorded += 1
            if self._is_closed or (self._waiting and self._num_waiting + size > MAX_WAITING):
                self._lost += 1
                return
            self._waiting.append(record)
            self._num_waiting += size
            if self._num_waiting > MAX_WAITING // 10:
                self._wake.set()

    def flush(self) -> None:
        """Write what waits; other processes can read it when this returns."""
        with self._writing:
            with self._lock:
                taken, self._waiting, self._num_waiting = self._waiting, [], 0
            for record in taken:
                try:
                    is_written = self._write(record)
                    self._is_failing &= not is_written
                except (OSError, ValueError) as error:  # ValueError: text that UTF-8 can't hold
                    if not self._is_failing:
                        logger.warning(
                            "records can't be written to {} and are lost ({}); check space and permissions",
                            self._config.folder, getattr(error, "strerror", None) or error,
                        )  # fmt: skip
                    self._is_failing = True
                    with self._lock:
                        self._lost += 1
                    continue
                with self._lock:
                    self._written += is_written
                    self._passed_over += not is_written
                    self._num_failures += record.is_failure
                    if is_written:
                        self._tenants.add(record.tenant)

    def close(self) -> None:
        """Write what waits and end; a second time does nothing."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        self._wake.set()
        self._worker.join()
        self.flush()
        self._failures.close()
        self._replay.close()

    def _write(self, record: RequestRecord) -> bool:
        """Write a record; return False if it is not to be kept.

        Raises:
            OSError: the disk is full, say.
            ValueError: it can't be put into JSON.
        """
        if record.is_failure:
            self._failures.append(line_of(record))
            return True
        if not self._config.replay:
            return False
        if self._reservoir is None:
            assert self._config.folder is not None
            self._reservoir = Reservoir(self._config.folder, self._config.replay)
        if not self._reservoir.takes(record.tenant, record.reservoir_key):
            return False
        path = self._replay.append(line_of(record))
        self._reservoir.add(path, record.tenant, record.reservoir_key)
        return True

    def _work(self) -> None:
        while not self._is_closed:
            self._wake.wait(self._flush_s)
            self._wake.clear()
            self.flush()
