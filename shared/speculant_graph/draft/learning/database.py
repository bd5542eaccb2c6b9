"""One SQLite database of what was learned: a table of texts and one of states.

A change is committed to the write-ahead log, which the end of the process does not undo; :meth:`Database.sync` brings
it to the disk itself.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from speculant_graph.errors import ConfigError

FORMAT = 1
"""Version of the tables."""
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
"""How long to wait for another process that has the database: a backup, or one that learns, too."""
# The last one stands for a table that is missing or not as it should be.
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)


def is_damage(error: sqlite3.Error) -> bool:
    """Return whether a database can't be used any more."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGED


class Database:
    """An open database: texts as little-endian 32-bit token ids, oldest first, and states by name."""

    def __init__(self, path: Path, max_tokens: int, *, is_exclusive: bool) -> None:
        """Open a database, or make it, for this user alone.

        Args:
            path: its file.
            max_tokens: tokens of texts to keep, the oldest out first.
            is_exclusive: whether no other process may have it meanwhile.

        Raises:
            ConfigError: it is of another format.
            sqlite3.Error: it can't be opened, is damaged, or in use.
            OSError: it can't be made.
        """
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # SQLite gives the files beside it the same mode
        self._max_bytes = max_tokens * ID_BYTES
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
                    f"{path} has format {found} of learned text and this release reads {FORMAT}; "
                    "update speculant-graph or name another folder"
                )
            self._num_bytes = self._counted()
        except BaseException:
            self._connection.close()
            raise

    def add(self, token_ids: bytes) -> None:
        """Add a text. Where all hold more than twice the budget, those that are wholly beyond it are removed."""
        self._connection.execute("INSERT INTO texts (token_ids) VALUES (?)", (token_ids,))
        self._num_bytes += len(token_ids)
        if self._num_bytes > 2 * self._max_bytes:
            self._connection.execute(_REMOVE_OLDEST, (self._max_bytes,))
            self._num_bytes = self._counted()

    def texts(self) -> list[bytes]:
        """Return the newest texts within the budget, oldest first; the first one may be cut at its front."""
        found: list[bytes] = []
        capacity = self._max_bytes
        for (text,) in self._connection.execute("SELECT CAST(token_ids AS BLOB) FROM texts ORDER BY id DESC"):
            if not capacity:
                break
            if text:  # not NULL after damage
                found.append(text[max(0, len(text) - capacity) :])
                capacity -= len(found[-1])
        return found[::-1]

    def put(self, name: str, content: bytes) -> None:
        """Replace a state by another."""
        self._connection.execute("INSERT OR REPLACE INTO states VALUES (?, ?)", (name, content))

    def get(self, name: str) -> bytes | None:
        """Return a state if there is one."""
        row = self._connection.execute("SELECT CAST(content AS BLOB) FROM states WHERE name = ?", (name,)).fetchone()
        return None if row is None else row[0]

    def sync(self) -> None:
        """Bring all of it to disk."""
        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        """Bring all of it to disk and let go of it."""
        self._connection.close()

    def _counted(self) -> int:
        return int(self._connection.execute("SELECT coalesce(sum(length(token_ids)), 0) FROM texts").fetchone()[0])
