"""Finished requests in a SQLite database: all failures, and of each tenant a uniform sample of the others.

Every request has a random key, and the sample is those with the smallest keys (Efraimidis and Spirakis, 2006, with
equal weights). Several processes may write to a folder; what one writes at once is there whole or not at all.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated

from loguru import logger
from pydantic import AfterValidator, TypeAdapter, ValidationError

from speculant_graph.config_learning import RecordConfig
from speculant_graph.errors import ConfigError
from speculant_verifier.records.record import RequestRecord

DATABASE = "records.sqlite"
"""Name of the file in the folder of records."""

_LOCK_TIMEOUT_S = 30.0
_SCHEMA = (
    "PRAGMA secure_delete = ON",  # what is deleted is overwritten, and the file becomes shorter
    "PRAGMA auto_vacuum = FULL",
    "CREATE TABLE IF NOT EXISTS records (id INTEGER PRIMARY KEY, is_failure INTEGER NOT NULL, tenant TEXT NOT NULL, "
    "time_s REAL NOT NULL, reservoir_key REAL NOT NULL, num_bytes INTEGER NOT NULL, record TEXT NOT NULL)",
    "CREATE INDEX IF NOT EXISTS sizes ON records (is_failure, id, num_bytes)",
    "CREATE INDEX IF NOT EXISTS samples ON records (tenant, reservoir_key) WHERE NOT is_failure",
)


def _consistent(record: RequestRecord) -> RequestRecord:
    """Return a record in which every position has an entry of every field per position."""
    pairs = ((record.drafted, record.sources), (record.top_token_ids, record.top_logprobs))
    lengths = {len(each) for pair in pairs for each in pair} | {len(record.accepted), len(record.output)}
    if len(lengths) > 1 or any([*map(len, ids)] != [*map(len, others)] for ids, others in pairs):
        raise ValueError("the fields per position differ from the output in length")
    return record


_RECORD: TypeAdapter[RequestRecord] = TypeAdapter(Annotated[RequestRecord, AfterValidator(_consistent)])


@contextmanager
def transaction(folder: Path) -> Iterator[sqlite3.Connection]:
    """Open the database of a folder, which is made if need be, for this user alone; commit at the end.

    Raises:
        OSError: the folder or the file can't be made.
        sqlite3.Error: the disk is full, the file is damaged, or another process has it for long.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / DATABASE
    path.touch(mode=0o600)
    with closing(sqlite3.connect(path, timeout=_LOCK_TIMEOUT_S)) as connection, connection:
        for statement in _SCHEMA:
            connection.execute(statement)
        connection.execute("BEGIN IMMEDIATE")
        yield connection


def insert(connection: sqlite3.Connection, record: RequestRecord, config: RecordConfig) -> bool:
    """Write a record, and delete the one of its tenant's replay that it displaces, if it is of the replay.

    Returns:
        Whether it is kept: a request that was no failure may not be drawn.

    Raises:
        ValueError: one of its texts is no Unicode, or it is larger than all may be together.
    """
    if not record.is_failure and not _is_drawn(connection, record, config.replay):
        return False
    content = _RECORD.dump_json(record, warnings="none").decode()
    if len(content) > config.max_bytes:
        raise ValueError(f"{len(content)} bytes are over the limit of {config.max_bytes}")
    connection.execute(
        "INSERT INTO records (is_failure, tenant, time_s, reservoir_key, num_bytes, record) VALUES (?, ?, ?, ?, ?, ?)",
        (record.is_failure, record.tenant, record.time_s, record.reservoir_key, len(content), content),
    )
    if not record.is_failure:
        connection.execute(
            "DELETE FROM records WHERE id IN (SELECT id FROM records WHERE NOT is_failure AND tenant = ? "
            "ORDER BY reservoir_key LIMIT -1 OFFSET ?)",
            (record.tenant, config.replay),
        )
    return True


def delete_oldest(connection: sqlite3.Connection, max_bytes: int) -> None:
    """Delete the oldest failures, and the oldest of the replay, until either takes no more bytes than it may."""
    connection.execute(
        "DELETE FROM records WHERE id IN (SELECT id FROM (SELECT id, sum(num_bytes) OVER "
        "(PARTITION BY is_failure ORDER BY id DESC) AS total FROM records) WHERE total > ?)",
        (max_bytes,),
    )


def _is_drawn(connection: sqlite3.Connection, record: RequestRecord, size: int) -> bool:
    """Whether a request is in the sample of its tenant's requests so far, of what has not been deleted."""
    largest = connection.execute(
        "SELECT reservoir_key FROM records WHERE NOT is_failure AND tenant = ? ORDER BY reservoir_key LIMIT 1 OFFSET ?",
        (record.tenant, size - 1),
    ).fetchone()
    return size > 0 and (largest is None or record.reservoir_key < largest[0])


def read_records(folder: str | Path, *, tenant: str | None = None) -> list[RequestRecord]:
    """Return the failures in a folder, the oldest first.

    Records that are damaged or of another release are left out, with one warning.

    Args:
        folder: where the verifier writes its records; without any there are none.
        tenant: whose; None: of all tenants.

    Raises:
        ConfigError: the file can't be read.
    """
    return _read(Path(folder), "is_failure", "time_s", tenant, -1)


def replay_of(folder: str | Path, tenant: str | None, count: int) -> list[RequestRecord]:
    """Return replay: requests that were no failures, drawn uniformly, in an order that is random, too.

    Args:
        folder: where the verifier writes its records.
        tenant: whose; None: of all tenants together.
        count: most requests wanted. Up to ``record.replay`` of them the draw is uniform.

    Raises:
        ConfigError: the file can't be read.
    """
    return _read(Path(folder), "NOT is_failure", "reservoir_key", tenant, count)


def _read(folder: Path, condition: str, order: str, tenant: str | None, most: int) -> list[RequestRecord]:
    if not (folder / DATABASE).exists():
        return []
    try:
        with transaction(folder) as connection:
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
