"""The folder of learned text: one SQLite database for each tenant, and one for state that belongs to no tenant.

Graph files of a tenant's older text (:mod:`.folding`) are in a folder with the name of the tenant's database.

One thread does all the work in order, so a caller waits for the disk only if it needs a result. A damaged database is
renamed, and its tenant starts with an empty one. A change is committed to the write-ahead log, which survives the end
of the process. :meth:`Database.sync` forces all changes to the disk.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
from threading import Lock, Thread
from typing import TypeVar

import numpy as np
from loguru import logger
from numpy.typing import NDArray

from speculant_graph.config import FoldConfig
from speculant_graph.draft.learning.database import ID_BYTES, Database
from speculant_graph.draft.learning.folding import Folding
from speculant_graph.draft.learning.layers import folder_of
from speculant_graph.errors import ConfigError, TokenizerMismatchError
from speculant_graph.graph.layout import Int64Array
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.types import Fingerprint

NO_FOLDS = FoldConfig(enabled=False)
"""Settings without folds."""
MAX_OPEN_DATABASES = 32
"""Maximum number of open databases; opening one more closes the least recently used database."""

_SHARED, _SUFFIX = "shared", ".sqlite"
SHARED = _SHARED + _SUFFIX
"""File of the state that belongs to no tenant."""
_LOOK_S = 0.01
_SWEEP_S = 3_600.0
"""Seconds between two checks of all tenants' text against the age limit, which is in days."""
# The last message means that a table is missing or malformed.
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)

_Result = TypeVar("_Result")


class LearnedFiles:
    """A folder of text learned with one tokenizer. No other process can use the folder until this object is closed.

    Several threads may use this object. After :meth:`close` every method except :meth:`close` raises a ``ConfigError``.
    Failed reads and writes are skipped; of consecutive failures, only the first is logged.
    """

    def __init__(
        self,
        folder: Path,
        tokenizer: Fingerprint,
        max_tokens: int,
        fold: FoldConfig = NO_FOLDS,
        *,
        on_graphs: Callable[[str, tuple[NgramGraph, ...]], None] = lambda _name, _graphs: None,
        on_fold: Callable[[float, bool], None] = lambda _seconds, _is_done: None,
    ) -> None:
        """Open or create a folder; only this user can access it.

        Args:
            folder: the folder; other files in it are not touched.
            tokenizer: the tokenizer of the ids.
            max_tokens: number of tokens kept for each tenant; the oldest are removed first. If folds are enabled, this
                is the maximum number of tokens that :meth:`load` returns.
            fold: settings that decide whether and when older text becomes graphs, and how much of the graphs is kept.
            on_graphs: called with the name of a tenant's files (:func:`name_of`) and its graphs, oldest first. This
                callback runs in this object's thread, during :meth:`announce` and after every change of the graphs.
            on_fold: called in this object's thread with the duration of every finished fold in seconds, and whether the
                fold succeeded.

        Raises:
            ConfigError: another process uses the folder, or it can't be read or written, or it has another format, or
                it contains the folders of several graphs.
            TokenizerMismatchError: the folder's text was learned with another tokenizer.
        """
        self.folder = folder
        self.tokenizer = tokenizer
        self.is_closed = False
        """Whether this object is closed, so that it refuses further work."""
        self._max_tokens = max_tokens
        # With folds, only ``fold.max_tokens`` removes text; without that limit, use a number that no database reaches.
        self._kept_tokens = (fold.max_tokens or 1 << 40) if fold.enabled else max_tokens
        self._folding = Folding(
            folder, tokenizer, fold, self._database, self._put_if_open, on_graphs=on_graphs, on_fold=on_fold
        )
        self._ages_matter = fold.enabled and fold.max_days > 0
        self._next_sweep_s = 0.0
        self._open: OrderedDict[str, Database] = OrderedDict()  # least recently used first
        self._failing: set[str] = set()
        self._lock = Lock()  # held briefly, so that no work is queued after closing
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        # A daemon thread still runs at interpreter exit, when engines close their stores.
        self._worker = Thread(target=self._do_work, name="learned", daemon=True)
        self._worker.start()
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._submit(self._require_ours).result()
            self._submit(self._sweep)
        except BaseException as error:
            self.close()
            if not isinstance(error, OSError | sqlite3.Error):
                raise
            if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_BUSY:
                raise ConfigError(f"{folder} is in use by another process; stop it or name another folder") from error
            raise ConfigError(
                f"{folder} can't be used for learned text ({_reason(error)}); "
                "check permissions and space, or name another folder"
            ) from error

    @property
    def is_failing(self) -> bool:
        """Whether the latest write or read failed."""
        return bool(self._failing)

    def append(self, tenant: str, token_ids: NDArray[np.integer]) -> None:
        """Queue a text, which is stored after all earlier texts.

        Args:
            tenant: name of the tenant, which may be any text.
            token_ids: the text's token ids, shape ``[n]``; of more ids than the budget allows, only the last ones are
                kept.
        """
        content = token_ids[max(token_ids.size - self._kept_tokens, 0) :].astype("<i4").tobytes()
        if content:
            self._submit(self._append, name_of(tenant), content)

    def load(self, tenant: str) -> list[Int64Array]:
        """Return a tenant's newest texts within the token budget, oldest first. The first text may lack its start.

        Invalid ids, which a damaged database may contain, are replaced with -1.
        """
        texts = self._submit(self._read, name_of(tenant), Database.texts).result() or []
        found = [np.frombuffer(text[: len(text) // ID_BYTES * ID_BYTES], "<u4").astype(np.int64) for text in texts]
        return [np.where(token_ids < self.tokenizer.vocabulary_size, token_ids, -1) for token_ids in found]

    def announce(self, tenant: str) -> None:
        """Call ``on_graphs`` with a tenant's graphs, and wait until it returns."""
        self._submit(self._announce, name_of(tenant)).result()

    def save_state(self, tenant: str | None, state: str, content: bytes) -> None:
        """Queue a named state, to be written to the disk.

        Args:
            tenant: the tenant of the state. A tenant of None means that all tenants share the state, which then must
                not contain text.
            state: its name.
            content: content of the state, which :meth:`load_state` returns.
        """
        self._submit(self._use, "saving a state", name_of(tenant), lambda database: database.put(state, content))

    def load_state(self, tenant: str | None, state: str) -> bytes | None:
        """Return a saved state; None if there is none, or it can't be read."""
        return self._submit(self._read, name_of(tenant), lambda database: database.get(state)).result()

    def forget(self, tenant: str) -> bool:
        """Remove all data of a tenant from the disk; return whether there was any.

        Raises:
            ConfigError: the data can't be removed.
        """
        try:
            return self._submit(self._remove, name_of(tenant)).result()
        except OSError as error:
            raise ConfigError(
                f"{error.filename or self.folder} can't be removed permanently ({_reason(error)}); "
                "check permissions and remove it yourself"
            ) from error

    def save(self) -> None:
        """Write all changes to disk; failed writes are retried at the next call."""
        self._submit(self._sync_all).result()

    def wait_for_folds(self) -> None:
        """Wait until all due folds are done; sequences that start later draft from all text."""
        while self._submit(lambda: self._folding.is_busy).result():
            time.sleep(_LOOK_S)

    def close(self) -> None:
        """Write everything to disk and release the folder; a second call does nothing."""
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
                raise ConfigError("the learned text is closed; open its folder again")
            return self._put(work, *arguments)

    def _put_if_open(self, work: Callable[[], None]) -> None:
        with self._lock:
            if not self.is_closed:
                self._put(work)

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

    # The methods below run in the worker thread.

    def _append(self, name: str, content: bytes) -> None:
        self._use("appending", name, lambda database: database.add(content))
        if name in self._open:
            self._folding.added(name, self._open[name])

    def _announce(self, name: str) -> None:
        is_known = self._path(name).exists() or folder_of(self.folder, name).is_dir()
        if is_known:
            self._use("reading", name, lambda _: self._folding.announce(name))

    def _read(self, name: str, lookup: Callable[[Database], _Result]) -> _Result | None:
        return self._use("reading", name, lookup) if self._path(name).exists() else None

    def _sync_all(self) -> None:
        for name in list(self._open):
            self._use("saving", name, Database.sync)
        self._sweep()

    def _sweep(self) -> None:
        """Check the age of every tenant's text periodically, including inactive tenants."""
        if not self._ages_matter or time.monotonic() < self._next_sweep_s:
            return
        self._next_sweep_s = time.monotonic() + _SWEEP_S
        names = (path.stem for path in list(self.folder.glob(f"*{_SUFFIX}")) if path.stem != _SHARED)
        self._look_at_next(names)

    def _look_at_next(self, names: Iterator[str]) -> None:
        # One at a time, so that other work can run in between.
        if (name := next(names, None)) is not None:
            self._use("forgetting", name, lambda database: self._folding.settle(name, database))
            self._put_if_open(lambda: self._look_at_next(names))

    def _use(self, action: str, name: str, work: Callable[[Database], _Result]) -> _Result | None:
        """Run work on a database, or on a new database if the old one is damaged; return None on failure."""
        try:
            result = self._renewed(name, work)
        except (OSError, sqlite3.Error) as error:
            if action not in self._failing:
                logger.warning(
                    "{}: {} fails ({}) and is skipped; check space and permissions there",
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
            logger.warning("{} is damaged ({}): a new one replaces it, and {} may be removed", path, error, aside)
            return work(self._database(name))

    def _database(self, name: str) -> Database:
        if name not in self._open:
            while len(self._open) >= MAX_OPEN_DATABASES:
                self._close(next(each for each in self._open if each != _SHARED))
            self._open[name] = self._opened(name)
        self._open.move_to_end(name)
        return self._open[name]

    def _opened(self, name: str) -> Database:
        if name == _SHARED:
            return Database(self._path(name), self._max_tokens, is_exclusive=True)
        last_id = self._folding.open(name)
        database = Database(self._path(name), self._max_tokens, kept_tokens=self._kept_tokens, last_id=last_id)
        try:
            self._folding.settle(name, database)
        except BaseException:
            database.close()
            raise
        return database

    def _path(self, name: str) -> Path:
        return self.folder / (name + _SUFFIX)

    def _remove(self, name: str) -> bool:
        self._close(name)
        had_graphs = folder_of(self.folder, name).is_dir()
        self._folding.forget(name)
        paths = list(self.folder.glob(f"{name}.*"))
        for path in paths:
            path.unlink()
        descriptor = os.open(self.folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        return had_graphs or bool(paths)

    def _close(self, name: str) -> None:
        if (database := self._open.pop(name, None)) is not None:
            database.close()
            self._folding.close(name)

    def _close_all(self) -> None:
        self._folding.end()
        self._sync_all()
        for name in list(self._open):
            self._close(name)

    def _require_ours(self) -> None:
        """Initialise the folder, or refuse it if it has another format, another tokenizer, or folders of graphs."""
        if not self._path(_SHARED).exists() and any(self.folder.glob(f"*/{_SHARED}{_SUFFIX}")):
            raise ConfigError(
                f"{self.folder} contains the learned text of several graphs",
                fix="name the folder of one graph, one level below",
                field="learned",
            )
        known = self._renewed(_SHARED, lambda database: database.get("tokenizer"))
        if known is None:
            ours = f"{self.tokenizer.sha256} {self.tokenizer.name}".encode(errors="replace")
            self._renewed(_SHARED, lambda database: database.put("tokenizer", ours))
            return
        sha256, _, name = known.decode(errors="replace").partition(" ")
        if sha256 != self.tokenizer.sha256:
            raise TokenizerMismatchError(
                f"{self.folder} has text learned with tokenizer {name} ({sha256[:12]}), not with "
                f"{self.tokenizer.name} ({self.tokenizer.sha256[:12]}); name another folder, or remove this one"
            )


def name_of(tenant: str | None) -> str:
    """Return a name for a tenant's files that every file system accepts."""
    return _SHARED if tenant is None else hashlib.sha256(tenant.encode("utf-8", "surrogatepass")).hexdigest()


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
