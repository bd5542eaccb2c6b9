"""Stores finished requests in SQLite: failures, and a uniform sample of each tenant's other requests (replay).

A failure is a request whose drafts were rarely accepted. Every request has a random key, and replay consists of the
requests with the smallest keys (Efraimidis and Spirakis 2006, with equal weights). Several processes may write to the
same folder; each write is atomic. This module does not need torch.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from loguru import logger
from pydantic import TypeAdapter, ValidationError

from speculant_graph.config import RecordConfig
from speculant_graph.errors import ConfigError
from speculant_verifier.records.record import RequestRecord

DATABASE = "records.sqlite"
"""Name of the database file in the records folder."""
REPLAY = 400
"""Number of replay requests kept per tenant. A training epoch uses fewer replay requests than this number, even with
hundreds of failures."""
MAX_WAITING = 4_000_000
"""Maximum number of values, such as token ids, queued in memory while the disk is slow; each takes about 40 bytes.
If the queue is full, further requests are lost."""

_LOCK_TIMEOUT_S = 30.0
_SCHEMA = (
    "PRAGMA secure_delete = ON",  # deleted data is overwritten, and the file shrinks
    "PRAGMA auto_vacuum = FULL",
    "CREATE TABLE IF NOT EXISTS records (id INTEGER PRIMARY KEY, is_failure INTEGER NOT NULL, tenant TEXT NOT NULL, "
    "time_s REAL NOT NULL, reservoir_key REAL NOT NULL, num_bytes INTEGER NOT NULL, record TEXT NOT NULL)",
    "CREATE INDEX IF NOT EXISTS sizes ON records (is_failure, id, num_bytes)",
    "CREATE INDEX IF NOT EXISTS samples ON records (tenant, reservoir_key) WHERE NOT is_failure",
)
_INSERT = "INSERT INTO records (is_failure, tenant, time_s, reservoir_key, num_bytes, record) VALUES (?, ?, ?, ?, ?, ?)"
_DELETE_SURPLUS_REPLAY = """
DELETE FROM records WHERE id IN (
    SELECT id FROM (
        SELECT id, row_number() OVER (PARTITION BY tenant ORDER BY reservoir_key, id) AS place
        FROM records WHERE NOT is_failure
    ) WHERE place > ?
)
"""
"""Deletes each tenant's replay requests except the ones with the smallest keys."""
_DELETE_OLDEST = """
DELETE FROM records WHERE id IN (
    SELECT id FROM (SELECT id, sum(num_bytes) OVER (PARTITION BY is_failure ORDER BY id DESC) AS total FROM records)
    WHERE total > ?
)
"""
"""Deletes the oldest failures and replay requests, so that each kind takes at most a given number of bytes."""

_RECORD = TypeAdapter(RequestRecord)


def read_records(folder: str | Path, *, tenant: str | None = None) -> list[RequestRecord]:
    """Return the failures recorded in a folder, oldest first.

    Damaged records and records of other releases are skipped, with one warning.

    Args:
        folder: the verifier's records folder; it may be empty.
        tenant: tenant whose failures are read; None: all tenants.

    Raises:
        ConfigError: the file can't be read.
    """
    return _read(Path(folder), "is_failure", "time_s", tenant, -1)


def replay_of(folder: str | Path, tenant: str | None, count: int) -> list[RequestRecord]:
    """Return replay requests: a uniform sample of requests that are not failures, in random order.

    Args:
        folder: the verifier's folder of records.
        tenant: tenant whose requests are sampled; None: all tenants together.
        count: maximum number of requests to return; the sample is uniform if this maximum is at most :data:`REPLAY`.

    Raises:
        ConfigError: the file can't be read.
    """
    return _read(Path(folder), "NOT is_failure", "reservoir_key", tenant, count)


def _read(folder: Path, condition: str, order: str, tenant: str | None, most: int) -> list[RequestRecord]:
    if not (folder / DATABASE).exists():
        return []
    try:
        with _transaction(folder) as connection:
            rows = connection.execute(
                f"SELECT record FROM records WHERE {condition} AND (?1 IS NULL OR tenant = ?1) "
                f"ORDER BY {order}, id LIMIT ?2",
                (tenant, min(most, 2**62)),
            ).fetchall()
    except (OSError, sqlite3.Error) as error:
        raise ConfigError(f"{folder / DATABASE} can't be read ({error}); copy it again, or delete it") from error
    records = []
    for (content,) in rows:
        try:
            records.append(_RECORD.validate_json(content))
        except ValidationError:
            continue
    if num_bad := len(rows) - len(records):
        logger.warning("{}: {} records are damaged or of another release and left out", folder / DATABASE, num_bad)
    return records


@contextmanager
def _transaction(folder: Path) -> Iterator[sqlite3.Connection]:
    """Open or create the database of a folder, readable only by this user; commit at the end.

    Raises:
        OSError: the folder or the file can't be created. sqlite3.Error: the disk is full, the file is damaged, or
            another process keeps it locked.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / DATABASE
    path.touch(mode=0o600)
    with closing(sqlite3.connect(path, timeout=_LOCK_TIMEOUT_S)) as connection, connection:
        for statement in _SCHEMA:
            connection.execute(statement)
        connection.execute("BEGIN IMMEDIATE")
        yield connection


@dataclass(slots=True)
class WriterStatistics:
    """Counts of requests since a record writer was created.

    Received requests that are neither stored nor lost are still queued, or were not selected for replay.
    """

    recorded: int = 0
    """Number of received requests."""
    written: int = 0
    """Number of stored requests."""
    lost: int = 0
    """Number of requests that could not be queued or written."""
    failures: int = 0
    """Number of failures among the stored requests."""
    tenants: set[str] = field(default_factory=set)
    """Tenants of the stored requests."""

    def line(self) -> str:
        """Return the counts as one line of text."""
        requests = f"{self.recorded} request{'' if self.recorded == 1 else 's'}"
        replay = self.written - self.failures
        passed_over = self.recorded - self.written - self.lost
        return (
            f"{requests}: {self.failures} whose drafts failed, to learn from, {replay} as replay, "
            f"{passed_over} not kept, {self.lost} lost"
        )


class RecordWriter:
    """Writes finished requests to the database of a folder, in a background thread.

    The writer is thread-safe, and several processes may use one folder. If the process crashes, the requests since the
    last write are lost. Only the constructor raises errors. Requests that can't be written are counted, and only one
    warning is logged until writing works again.
    """

    def __init__(self, config: RecordConfig, *, num_replay: int = REPLAY, flush_s: float = 1.0) -> None:
        """Create the folder if needed, and start the thread.

        Args:
            config: settings with the records folder.
            num_replay: number of replay requests to keep per tenant.
            flush_s: seconds between writes.

        Raises:
            ConfigError: the folder can't be created.
        """
        assert config.folder is not None
        self._folder, self._max_bytes, self._num_replay = config.folder, config.max_bytes, num_replay
        try:
            with _transaction(self._folder):
                pass
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(
                f"{self._folder} can't be used for records ({_reason(error)}); check permissions, or name another "
                "folder"
            ) from error
        self._lock = threading.Lock()  # guards the queue and the counts
        self._writing = threading.Lock()
        self._waiting: list[RequestRecord] = []
        self._num_waiting = 0
        self.statistics = WriterStatistics()
        """Counts of requests since the writer was created."""
        self._is_failing = False
        self._closing = threading.Event()
        self._flush_s = flush_s
        self._worker = threading.Thread(target=self._work, name="records", daemon=True)
        self._worker.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def record(self, record: RequestRecord) -> None:
        """Queue a record without disk access. Records that arrive after :meth:`close` count as lost."""
        size = len(record.prompt) + sum(4 + 2 * len(row) for row in record.top_token_ids)
        with self._lock:
            is_lost = self._closing.is_set() or (self._waiting and self._num_waiting + size > MAX_WAITING)
            self.statistics.recorded += 1
            self.statistics.lost += bool(is_lost)
            if not is_lost:
                self._waiting.append(record)
                self._num_waiting += size

    def flush(self) -> None:
        """Write queued records; after the call, other processes can read them."""
        with self._writing:
            with self._lock:
                taken, self._waiting, self._num_waiting = self._waiting, [], 0
            if not taken:
                return
            kept: list[tuple[str, int]] = []
            num_lost = len(taken)
            try:
                rows = [row for record in taken if (row := self._row(record)) is not None]
                with _transaction(self._folder) as connection:
                    (newest,) = connection.execute("SELECT coalesce(max(id), 0) FROM records").fetchone()
                    connection.executemany(_INSERT, rows)
                    connection.execute(_DELETE_SURPLUS_REPLAY, (self._num_replay,))
                    connection.execute(_DELETE_OLDEST, (self._max_bytes,))
                    kept = connection.execute(
                        "SELECT tenant, is_failure FROM records WHERE id > ?", (newest,)
                    ).fetchall()
                num_lost -= len(rows)
                self._is_failing = num_lost > 0
            except (OSError, sqlite3.Error) as error:
                kept = []
                self._warn(error)
            with self._lock:
                self.statistics.written += len(kept)
                self.statistics.lost += num_lost
                self.statistics.failures += sum(is_failure for _, is_failure in kept)
                self.statistics.tenants.update(tenant for tenant, _ in kept)

    def close(self) -> None:
        """Write queued records and stop the thread. A second call of this method does nothing."""
        with self._lock:
            self._closing.set()
        self._worker.join()
        self.flush()

    def _work(self) -> None:
        while not self._closing.wait(self._flush_s):
            self.flush()

    def _row(self, record: RequestRecord) -> tuple[object, ...] | None:
        """Return a record as a database row; None if a text is not valid Unicode, or the record is too large."""
        try:
            content = _RECORD.dump_json(record, warnings="none").decode()
            if len(content) > self._max_bytes:
                raise ValueError(f"{len(content)} bytes are over the limit of {self._max_bytes}")
        except ValueError as error:
            self._warn(error)
            return None
        return record.is_failure, record.tenant, record.time_s, record.reservoir_key, len(content), content

    def _warn(self, error: Exception) -> None:
        if not self._is_failing:
            logger.warning(
                "records can't be written to {} and are lost ({}); check space and permissions",
                self._folder, _reason(error),
            )  # fmt: skip
        self._is_failing = True


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
