"""The SQLite database of one tenant's learned text, or of the state that all tenants share."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from speculant_graph.corpus.stream import DOCUMENT_SEPARATOR
from speculant_graph.errors import ConfigError
from speculant_graph.graph.layout import UInt32Array

FORMAT = 1
"""Version of the database format."""
ID_BYTES = 4

_TABLES = f"""
BEGIN;
CREATE TABLE texts (id INTEGER PRIMARY KEY, token_ids BLOB NOT NULL);
CREATE TABLE states (name TEXT PRIMARY KEY, content BLOB NOT NULL);
PRAGMA user_version = {FORMAT};
COMMIT;
"""
_REMOVE_OLDEST = """
DELETE FROM texts WHERE id < (
    SELECT max(id) FROM (SELECT id, sum(length(token_ids)) OVER (ORDER BY id DESC) AS num_bytes FROM texts)
    WHERE num_bytes >= ?
)
"""
_PATIENCE_S = 1.0
"""Seconds to wait for another process that has locked the database, such as a backup or another sidecar."""
_SEPARATOR = np.array([DOCUMENT_SEPARATOR], "<u4").tobytes()
_HIGHEST_ID = 1 << 62
"""Ids are milliseconds, so an id of this size or more means damage. Ids after such an id would soon exceed 64 bits."""


class Database:
    """An open database of texts (little-endian 32-bit token ids, oldest first) and named states.

    The id of a text is the time when it was added, in milliseconds since 1970, or the previous id plus one. Ids
    increase even if all earlier texts are removed or the clock is set back. A range of ids therefore identifies the
    same texts permanently.
    """

    def __init__(
        self,
        path: Path,
        max_tokens: int,
        *,
        is_exclusive: bool = False,
        kept_tokens: int | None = None,
        last_id: int = 0,
    ) -> None:
        """Open or create a database, readable by this user only.

        Args:
            path: its file.
            max_tokens: maximum number of tokens that :meth:`texts` returns; it prefers the newest texts.
            is_exclusive: whether to exclude other processes.
            kept_tokens: number of tokens to keep; the oldest are removed first. None: ``max_tokens``.
            last_id: highest id used so far; new texts get higher ids.

        Raises:
            ConfigError: the database has another format.
            sqlite3.Error: the database can't be opened, is damaged, or is in use.
            OSError: the database can't be created.
        """
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # SQLite gives the files next to it the same mode
        self._max_bytes = max_tokens * ID_BYTES
        self._kept_bytes = self._max_bytes if kept_tokens is None else kept_tokens * ID_BYTES
        self._connection = sqlite3.connect(path, _PATIENCE_S, isolation_level=None)
        try:
            if is_exclusive:
                self._connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = NORMAL")
            ((found,),) = self._connection.execute("PRAGMA user_version")
            if not found:
                self._connection.executescript(_TABLES)
            elif found != FORMAT:
                raise ConfigError(
                    f"{path} has format {found} of learned text but this release reads {FORMAT}; "
                    "update speculant-graph or name another folder"
                )
            self._num_bytes = self._counted()
            self._last_id = max(last_id, self._highest_id())
        except BaseException:
            self._connection.close()
            raise

    @property
    def num_tokens(self) -> int:
        """Number of tokens in all texts of the database."""
        return self._num_bytes // ID_BYTES

    def add(self, token_ids: bytes) -> None:
        """Add a text.

        If the texts exceed twice ``kept_tokens``, remove the oldest until about ``kept_tokens`` are left.
        """
        text_id = max(self._last_id + 1, time.time_ns() // 1_000_000)
        self._connection.execute("INSERT INTO texts VALUES (?, ?)", (text_id, token_ids))
        self._last_id = text_id
        self._num_bytes += len(token_ids)
        if self._num_bytes > 2 * self._kept_bytes:
            self._connection.execute(_REMOVE_OLDEST, (self._kept_bytes,))
            self._num_bytes = self._counted()

    def texts(self) -> list[bytes]:
        """Return the newest texts up to ``max_tokens`` tokens, oldest first; the first text may lack its start."""
        found: list[bytes] = []
        capacity = self._max_bytes
        for (text,) in self._connection.execute("SELECT CAST(token_ids AS BLOB) FROM texts ORDER BY id DESC"):
            if not capacity:
                break
            if text:  # damage may make it NULL
                found.append(text[max(0, len(text) - capacity) :])
                capacity -= len(found[-1])
        return found[::-1]

    def oldest(self, num_left: int) -> Iterator[tuple[int, bytes]]:
        """Yield the oldest texts with their ids, until the remaining texts have at most ``num_left`` tokens."""
        num_bytes = self._num_bytes
        rows = self._connection.execute("SELECT id, CAST(token_ids AS BLOB) FROM texts ORDER BY id")
        for text_id, text in rows:
            if num_bytes <= num_left * ID_BYTES:
                return
            num_bytes -= len(text or b"")
            yield text_id, text or b""

    def remove(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Remove the texts in ranges of ids, first and last included, in one transaction."""
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            self._connection.executemany("DELETE FROM texts WHERE id BETWEEN ? AND ?", ranges)
            self._connection.execute("COMMIT")
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._num_bytes = self._counted()

    def put(self, name: str, content: bytes) -> None:
        """Store a state under a name."""
        self._connection.execute("INSERT OR REPLACE INTO states VALUES (?, ?)", (name, content))

    def get(self, name: str) -> bytes | None:
        """Return the state with a name; None if there is none."""
        row = self._connection.execute("SELECT CAST(content AS BLOB) FROM states WHERE name = ?", (name,)).fetchone()
        return None if row is None else row[0]

    def sync(self) -> None:
        """Write all changes to disk."""
        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        """Write all changes to disk and close the database."""
        self._connection.close()

    def _counted(self) -> int:
        return int(self._connection.execute("SELECT coalesce(sum(length(token_ids)), 0) FROM texts").fetchone()[0])

    def _highest_id(self) -> int:
        highest = int(self._connection.execute("SELECT coalesce(max(id), 0) FROM texts").fetchone()[0])
        if highest >= _HIGHEST_ID:
            damage = sqlite3.DatabaseError(f"a text has the id {highest}")
            damage.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
            raise damage
        return highest


def write_documents(
    file: BinaryIO, rows: Iterable[tuple[int, bytes]], vocabulary_size: int
) -> tuple[tuple[int, int], int, int]:
    """Write texts as the documents of a token stream.

    Args:
        file: the output.
        rows: texts with their ids.
        vocabulary_size: ids at or above this number come only from damage, and a text is split at them.

    Returns:
        First and last id of the rows, and the numbers of written tokens and documents.
    """
    first, last, num_tokens, num_documents = 0, -1, 0, 0
    for row_id, text in rows:
        first, last = (row_id if last < 0 else first), row_id
        token_ids: UInt32Array = np.frombuffer(text[: len(text) // ID_BYTES * ID_BYTES], "<u4")
        borders = np.flatnonzero(token_ids >= vocabulary_size).tolist()
        for start, stop in zip([0, *(border + 1 for border in borders)], [*borders, token_ids.size], strict=True):
            if start < stop:
                if num_documents:
                    file.write(_SEPARATOR)
                file.write(token_ids[start:stop].tobytes())
                num_tokens, num_documents = num_tokens + stop - start, num_documents + 1
    return (first, last), num_tokens, num_documents
