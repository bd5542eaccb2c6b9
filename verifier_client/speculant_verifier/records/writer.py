"""Writes finished requests to the database of a folder, by a thread of its own. Nothing here needs torch."""

from __future__ import annotations

import sqlite3
import threading
from dataclasses import dataclass
from typing import Self

from loguru import logger

from speculant_graph.config_learning import RecordConfig
from speculant_graph.errors import ConfigError
from speculant_verifier.records.database import delete_oldest, insert, transaction
from speculant_verifier.records.record import RequestRecord

MAX_WAITING = 4_000_000
"""Numbers of records kept in memory while the disk is slow, about 40 bytes each; further requests are lost."""


@dataclass(frozen=True, slots=True)
class WriterStatistics:
    """What a writer did since it was made. What is in none of the last three still waits."""

    recorded: int
    """Requests that it was given."""
    written: int
    """Those that are kept."""
    passed_over: int
    """Those that were no failures, and not drawn for replay."""
    lost: int
    """Those that could not be written."""
    failures: int
    """Failures among those that were written."""
    num_tenants: int
    """Tenants of those that were written."""

    def line(self) -> str:
        """Return the counts in one line for people."""
        requests = f"{self.recorded} request{'' if self.recorded == 1 else 's'}"
        replay = self.written - self.failures
        return (
            f"{requests}, {self.failures} failures, {replay} replay, {self.passed_over} passed over, {self.lost} lost"
        )


class RecordWriter:
    """Writes records to a folder.

    Safe to use from several threads, and several processes may use one folder. A crash of this process loses what
    came since the last time that the thread wrote. Nothing raises once it is made: what can't be written is counted,
    with one warning until it works again.
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
        self._folder, self._config, self._flush_s = config.folder, config, flush_s
        try:
            with transaction(self._folder):
                pass
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(
                f"{self._folder} can't be used for records ({_reason(error)}); check permissions, or name another "
                "folder"
            ) from error
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
            if not taken:
                return
            kept: list[RequestRecord] = []
            num_bad = 0
            try:
                with transaction(self._folder) as connection:
                    for record in taken:
                        try:
                            if insert(connection, record, self._config):
                                kept.append(record)
                        except ValueError as error:
                            num_bad += 1
                            self._warn(error)
                    delete_oldest(connection, self._config.max_bytes)
                self._is_failing = num_bad > 0
            except (OSError, sqlite3.Error) as error:
                kept, num_bad = [], len(taken)
                self._warn(error)
            with self._lock:
                self._lost += num_bad
                self._written += len(kept)
                self._passed_over += len(taken) - len(kept) - num_bad
                self._num_failures += sum(record.is_failure for record in kept)
                self._tenants.update(record.tenant for record in kept)

    def close(self) -> None:
        """Write what waits and end; a second time does nothing."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        self._wake.set()
        self._worker.join()
        self.flush()

    def _warn(self, error: Exception) -> None:
        if not self._is_failing:
            logger.warning(
                "records can't be written to {} and are lost ({}); check space and permissions",
                self._folder, _reason(error),
            )  # fmt: skip
        self._is_failing = True

    def _work(self) -> None:
        while not self._is_closed:
            self._wake.wait(self._flush_s)
            self._wake.clear()
            self.flush()


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
