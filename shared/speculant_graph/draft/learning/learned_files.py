"""The folder of what was learned: one SQLite database for each tenant, and one for what no tenant owns.

One thread does all of it, in order, so that a caller waits for the disk only where it needs a result. A damaged
database is moved aside, and its tenant begins anew. A change is committed to the write-ahead log, which the end of the
process does not undo; :meth:`Database.sync` brings it to the disk itself.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
from threading import Lock, Thread
from typing import TypeVar

import numpy as np
from loguru import logger
from numpy.typing import NDArray

from speculant_graph.errors import ConfigError, TokenizerMismatchError
from speculant_graph.graph.layout import Int64Array
from speculant_graph.types import Fingerprint

MAX_OPEN_DATABASES = 32
"""Databases kept open; of more tenants the longest unused are closed."""

_SHARED, _SUFFIX = "shared", ".sqlite"

_Result = TypeVar("_Result")

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


class LearnedFiles:
    """What was learned with one tokenizer; this process alone has the folder until it is closed.

    Safe to use from several threads. After :meth:`close` everything but another one raises a ``ConfigError``. What
    can't be written or read is logged, the first time of several in a row, and left out.
    """

    def __init__(self, folder: Path, tokenizer: Fingerprint, max_tokens: int) -> None:
        """Open a folder, or make it, for this user alone.

        Args:
            folder: where the files are; other files in it are left alone.
            tokenizer: the tokenizer that ids are of.
            max_tokens: tokens kept for each tenant, the oldest out first.

        Raises:
            ConfigError: another process has the folder, it can't be read or written, or it is of another format.
            TokenizerMismatchError: it holds what was learned with another tokenizer.
        """
        self.folder = folder
        self.tokenizer = tokenizer
        self.is_closed = False
        """Whether nothing is taken any more."""
        self._max_tokens = max_tokens
        self._open: OrderedDict[str, Database] = OrderedDict()  # the longest unused first
        self._failing: set[str] = set()
        self._lock = Lock()  # held for moments, so that nothing is put behind the end
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        # It goes on while the interpreter ends, when engines close what they have.
        self._worker = Thread(target=self._do_work, name="learned", daemon=True)
        self._worker.start()
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._submit(self._require_ours).result()
        except BaseException as error:
            self.close()
            if not isinstance(error, OSError | sqlite3.Error):
                raise
            if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_BUSY:
                raise ConfigError(
                    f"{folder} is in use by another process that learns; stop that one or name another folder"
                ) from error
            raise ConfigError(
                f"{folder} can't be used for what is learned ({_reason(error)}); "
                "check permissions and space, or name another folder"
            ) from error

    @property
    def is_failing(self) -> bool:
        """Whether the latest try to write or read something failed."""
        return bool(self._failing)

    def append(self, tenant: str, token_ids: NDArray[np.integer]) -> None:
        """Add a text behind all others, soon.

        Args:
            tenant: any text.
            token_ids: shape ``[n]``; of more than the budget the last ones are kept.
        """
        content = token_ids[max(token_ids.size - self._max_tokens, 0) :].astype("<i4").tobytes()
        if content:
            self._submit(self._use, "appending", _name_of(tenant), lambda database: database.add(content))

    def load(self, tenant: str) -> list[Int64Array]:
        """Return the newest texts of a tenant within the budget, oldest first; the first one may be cut at its front.

        What is no id of the tokenizer is -1: after damage anything may stand there.
        """
        texts = self._submit(self._read, _name_of(tenant), Database.texts).result() or []
        found = [np.frombuffer(text[: len(text) // ID_BYTES * ID_BYTES], "<u4").astype(np.int64) for text in texts]
        return [np.where(token_ids < self.tokenizer.vocabulary_size, token_ids, -1) for token_ids in found]

    def save_state(self, tenant: str | None, state: str, content: bytes) -> None:
        """Replace a state by another, soon.

        Args:
            tenant: the tenant it belongs to; None: it belongs to all, and must hold no text.
            state: its name.
            content: what :meth:`load_state` is to return.
        """
        self._submit(self._use, "saving a state", _name_of(tenant), lambda database: database.put(state, content))

    def load_state(self, tenant: str | None, state: str) -> bytes | None:
        """Return a state if there is one."""
        return self._submit(self._read, _name_of(tenant), lambda database: database.get(state)).result()

    def forget(self, tenant: str) -> None:
        """Remove everything of a tenant from the disk.

        Raises:
            ConfigError: it can't be removed.
        """
        try:
            self._submit(self._remove, _name_of(tenant)).result()
        except OSError as error:
            raise ConfigError(
                f"{error.filename or self.folder} can't be removed for good ({_reason(error)}); "
                "check permissions and remove it yourself"
            ) from error

    def save(self) -> None:
        """Bring everything to disk; what fails is tried again the next time."""
        self._submit(self._sync_all).result()

    def close(self) -> None:
        """Bring everything to disk and give the folder back; a second time does nothing."""
        with self._lock:
            if self.is_closed:
                return
            self.is_closed = True
            closed = self._put(self._close_all)
            self._work.put(None)
        closed.result()

    def _submit(self, work: Callable[..., _Result], *arguments: object) -> Future[_Result]:
        with self._lock:
            if self.is_closed:
                raise ConfigError("what was learned is closed; open its folder again")
            return self._put(work, *arguments)

    def _put(self, work: Callable[..., _Result], *arguments: object) -> Future[_Result]:
        future: Future[_Result] = Future()

        def run() -> None:
            try:
                future.set_result(work(*arguments))
            except BaseException as error:
                future.set_exception(error)

        self._work.put(run)
        return future

    def _do_work(self) -> None:
        for run in iter(self._work.get, None):
            run()

    # What follows runs in the worker thread.

    def _read(self, name: str, look_up: Callable[[Database], _Result]) -> _Result | None:
        return self._use("reading", name, look_up) if self._path(name).exists() else None

    def _sync_all(self) -> None:
        for name in list(self._open):
            self._use("saving", name, Database.sync)

    def _use(self, action: str, name: str, work: Callable[[Database], _Result]) -> _Result | None:
        """Work with a database, where it is damaged with a new one; None if it fails."""
        try:
            result = self._renewed(name, work)
        except (OSError, sqlite3.Error) as error:
            if action not in self._failing:
                logger.warning(
                    "{}: {} fails ({}), going on without; check space and permissions there",
                    self.folder, action, _reason(error),
                )  # fmt: skip
            self._failing.add(action)
            return None
        self._failing.discard(action)
        return result

    def _renewed(self, name: str, work: Callable[[Database], _Result]) -> _Result:
        try:
            return work(self._database(name))
        except sqlite3.DatabaseError as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF not in _DAMAGED:
                raise
            self._close(name)
            path, aside = self._path(name), self.folder / f"{name}.damaged"
            for beside in self.folder.glob(f"{path.name}-*"):
                beside.unlink()
            path.replace(aside)
            logger.warning("{} is damaged ({}): it begins anew, and {} may be removed", path, error, aside)
            return work(self._database(name))

    def _database(self, name: str) -> Database:
        if name not in self._open:
            while len(self._open) >= MAX_OPEN_DATABASES:
                self._close(next(each for each in self._open if each != _SHARED))
            self._open[name] = Database(self._path(name), self._max_tokens, is_exclusive=name == _SHARED)
        self._open.move_to_end(name)
        return self._open[name]

    def _path(self, name: str) -> Path:
        return self.folder / (name + _SUFFIX)

    def _remove(self, name: str) -> None:
        self._close(name)
        for path in self.folder.glob(f"{name}.*"):
            path.unlink()
        descriptor = os.open(self.folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _close(self, name: str) -> None:
        if (database := self._open.pop(name, None)) is not None:
            database.close()

    def _close_all(self) -> None:
        self._sync_all()
        for name in list(self._open):
            self._close(name)

    def _require_ours(self) -> None:
        """Take the folder, or refuse it if it is of another format or another tokenizer."""
        known = self._renewed(_SHARED, lambda database: database.get("tokenizer"))
        if known is None:
            ours = f"{self.tokenizer.sha256} {self.tokenizer.name}".encode(errors="replace")
            self._renewed(_SHARED, lambda database: database.put("tokenizer", ours))
            return
        sha256, _, name = known.decode(errors="replace").partition(" ")
        if sha256 != self.tokenizer.sha256:
            raise TokenizerMismatchError(
                f"{self.folder} holds what was learned with tokenizer {name} ({sha256[:12]}), not with "
                f"{self.tokenizer.name} ({self.tokenizer.sha256[:12]}); name another folder, or remove this one"
            )


def _name_of(tenant: str | None) -> str:
    """Return a name that every file system takes, whatever the tenant's is."""
    return _SHARED if tenant is None else hashlib.sha256(tenant.encode("utf-8", "surrogatepass")).hexdigest()


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
