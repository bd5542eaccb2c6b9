"""What was learned, on disk: the accepted text of every tenant in a log of its own, and small states beside them.

A plain log and not a database: damage costs the documents it hits and no others, and a tenant is forgotten by removing
one file, where a page of SQLite that goes bad can take the table, and a removed row stays in pages, log and free list.

:meth:`LearnedLog.append` hands a document to the operating system in one call, so the death of the process loses
nothing. A thread brings all of it to the disk every ``sync_s`` seconds, as :meth:`LearnedLog.save` and
:meth:`LearnedLog.close` do; a power failure loses at most what came since. A log that holds more than twice the budget
is then rewritten to what is within it: beside the old file, brought to disk, moved to its name.

A damaged or half-written record is passed over, those behind it are found, and a warning says how much was lost.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import numpy as np
from loguru import logger
from numpy.typing import NDArray

from speculant_graph.draft.learned_files import (
    OpenLogs,
    append_whole,
    files_of,
    lock_folder,
    new_file,
    remove_temporaries,
    sync_folder,
    unlock_folder,
    write_synced,
)
from speculant_graph.draft.learned_records import (
    TOKEN_ID_LIMIT,
    FileKind,
    Label,
    LogContent,
    packed_record,
    packed_state,
    read_label,
    read_log,
    read_state,
)
from speculant_graph.errors import ConfigError, TokenizerMismatchError
from speculant_graph.types import Fingerprint, TokenId

_ID_BYTES = 4
_KINDS_OF_TENANTS: tuple[FileKind, ...] = ("log", "rows")


class LearnedLog:
    """The folder of what was learned with one tokenizer; this process alone has it until it is closed.

    Safe to use from several threads. Only ``append`` and ``tenants`` never wait for the disk, but for the moment in
    which a rewritten log is moved to its name. All files are readable by this user alone, and so is the folder if it
    had to be made.
    """

    def __init__(self, folder: str | Path, *, max_tokens: int, identity: Fingerprint, sync_s: float = 2.0) -> None:
        """Open a folder, or make it.

        Args:
            folder: where the files are; other files in it are left alone.
            max_tokens: tokens kept for each tenant, the oldest out first.
            identity: the tokenizer that ids are of.
            sync_s: seconds after which appended documents are brought to disk.

        Raises:
            ConfigError: another process has the folder, it can't be read or written, a file in it is of another
                version, or the number of tokens is negative.
            TokenizerMismatchError: a file in it is of another tokenizer.
        """
        if max_tokens < 0:
            raise ConfigError(f"a log can't keep {max_tokens} tokens; give 0 or more")
        self.folder = folder = Path(folder)
        self._max_tokens = max_tokens
        self._identity = identity
        self._sync_s = sync_s
        # Whoever holds both took the first one first. The second one is all that an append waits for.
        self._upkeep = threading.Lock()
        self._lock = threading.Lock()
        self._open_logs = OpenLogs(folder)
        self._num_tokens: dict[str, int] = {}  # of every tenant's log; too many until it is first read
        self._unsynced: set[str] = set()
        self._failing: set[str] = set()
        self._closed = threading.Event()
        self._worker = threading.Thread(target=self._work, name="learned-log", daemon=True)
        try:
            self._folder_lock = lock_folder(folder)
            try:
                remove_temporaries(folder)
                self._read_labels()
            except BaseException:
                unlock_folder(self._folder_lock)
                raise
        except OSError as error:
            raise ConfigError(
                f"{error.filename or folder} can't be used for what is learned ({error.strerror}); "
                "check permissions and space, or name another folder"
            ) from error
        self._worker.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_closed(self) -> bool:
        """Whether nothing is taken any more."""
        return self._closed.is_set()

    @property
    def is_failing(self) -> bool:
        """Whether the latest try to bring something to disk failed."""
        return bool(self._failing)

    def tenants(self) -> list[str]:
        """Return the tenants that have a log, sorted.

        One whose header is damaged has none until its tenant is loaded or appended to.
        """
        with self._lock:
            return sorted(self._num_tokens)

    def num_bytes(self, tenant: str) -> int:
        """Return the size of a tenant's files; 0 if it has none."""
        return sum(path.stat().st_size for path in self._files_of(tenant) if path.exists())

    def load(self, tenant: str) -> list[NDArray[np.uint32]]:
        """Return the newest documents of a tenant, oldest first, and mend its log if it is damaged.

        Args:
            tenant: any text; nothing is made for one that is unknown.

        Returns:
            At most ``max_tokens`` ids in all, documents of shape ``[n]`` with n > 0; the first one may be cut at its
            front. Empty if the log can't be read, which is logged.
        """
        with self._upkeep:
            self._require_open()
            return self._tidied(tenant)

    def append(self, tenant: str, token_ids: Sequence[TokenId] | NDArray[np.integer]) -> bool:
        """Add a document behind all others; on a full disk leave it out, log that once, and go on.

        Args:
            tenant: any text.
            token_ids: shape ``[n]``; of more than ``max_tokens`` the last ones are kept.

        Returns:
            False if it is left out, as are ids that no tokenizer has and all that comes after :meth:`close`.
        """
        document = np.asarray(token_ids)
        document = document[max(document.size - self._max_tokens, 0) :]
        if not document.size:
            return True
        if document.min() < 0 or document.max() >= TOKEN_ID_LIMIT:
            return False
        with self._lock, self._going_on("appending"):
            if self._closed.is_set():
                return False
            log = self._open_logs.get(self._label("log", tenant))
            append_whole(log.descriptor, packed_record(document, log.salt))
            self._num_tokens[tenant] = self._num_tokens.get(tenant, 0) + document.size
            self._unsynced.add(tenant)
            return True
        return False

    def compact(self, tenant: str) -> None:
        """Rewrite a tenant's log with what :meth:`load` returns; a failure is logged and leaves it as it was."""
        with self._upkeep:
            self._require_open()
            self._tidied(tenant, rewrite=True)

    def forget(self, tenant: str) -> None:
        """Remove everything of a tenant from the disk.

        Raises:
            ConfigError: it can't be removed.
        """
        with self._upkeep:
            self._require_open()
            try:
                with self._lock:
                    self._open_logs.close(tenant)
                    for path in self._files_of(tenant):
                        path.unlink(missing_ok=True)
                    self._num_tokens.pop(tenant, None)
                    self._unsynced.discard(tenant)
                sync_folder(self.folder)
            except OSError as error:
                raise ConfigError(
                    f"{error.filename or self.folder} can't be removed for good ({error.strerror}); "
                    "check permissions and remove it yourself"
                ) from error

    def save(self) -> bool:
        """Bring everything to disk, and compact logs that hold more than twice the budget.

        Returns:
            Whether all is on disk; if not, the reason is logged and the next time tries again.
        """
        with self._upkeep:
            self._require_open()
            return self._saved()

    def save_state(self, name: str, blob: bytes, *, kind: FileKind = "state") -> bool:
        """Replace a state by another, on disk when this returns.

        Args:
            name: any text; of ``rows`` the tenant.
            blob: what :meth:`load_state` is to return. A ``state`` belongs to no tenant and must hold no text of one.
            kind: ``rows``, which are forgotten with their tenant, or ``state``.

        Returns:
            Whether it is saved; if not, the reason is logged and the old one stays.
        """
        label = self._label(kind, name)
        path = self.folder / label.file_name
        with self._upkeep:
            self._require_open()
            with self._going_on("saving a state"):
                with new_file(path) as (file, temporary):
                    write_synced(file, packed_state(blob, label))
                    temporary.replace(path)
                sync_folder(self.folder)
                return True
        return False

    def load_state(self, name: str, *, kind: FileKind = "state") -> bytes | None:
        """Return a state; None if there is none or, which is logged, it is damaged."""
        label = self._label(kind, name)
        path = self.folder / label.file_name
        with self._upkeep:
            self._require_open()
            with self._going_on("reading a state"):
                try:
                    file = path.open("rb")
                except FileNotFoundError:
                    return None
                with file:
                    blob = read_state(file, path, label)
                if blob is None:
                    logger.warning("{} is damaged and left out; it will be learned again", path)
                return blob
        return None

    def close(self) -> None:
        """Bring everything to disk and give the folder back; a second time does nothing."""
        with self._lock:
            if self._closed.is_set():
                return
            self._closed.set()
        self._worker.join()
        with self._upkeep:
            try:
                self._saved()
            finally:
                with self._lock:
                    self._open_logs.close_all()
                unlock_folder(self._folder_lock)

    def _files_of(self, tenant: str) -> list[Path]:
        return [self.folder / self._label(kind, tenant).file_name for kind in _KINDS_OF_TENANTS]

    def _work(self) -> None:
        while not self._closed.wait(self._sync_s):
            with self._upkeep:
                try:
                    self._saved()
                except ConfigError as error:  # somebody put a file of another version there
                    logger.warning("{}", error)

    def _saved(self) -> bool:
        with self._lock:
            unsynced, self._unsynced = self._unsynced, set()
        if not unsynced:
            return True
        failed: dict[str, OSError] = {}
        for tenant in unsynced:
            try:
                self._sync(tenant)
            except OSError as error:  # the others' text must reach the disk all the same
                failed[tenant] = error
            if self._num_tokens[tenant] > 2 * self._max_tokens:
                self._tidied(tenant)
        with self._going_on("saving"):
            sync_folder(self.folder)
            if failed:
                raise next(iter(failed.values()))
            return True
        with self._lock:
            self._unsynced |= failed.keys() or unsynced
        return False

    def _sync(self, tenant: str) -> None:
        with self._lock:
            descriptor = os.dup(self._open_logs.get(self._label("log", tenant)).descriptor)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _tidied(self, tenant: str, *, rewrite: bool = False) -> list[NDArray[np.uint32]]:
        """Return what is within the budget, and rewrite the log if it is asked for, damaged or far too long."""
        label = self._label("log", tenant)
        path = self.folder / label.file_name
        content: LogContent | None = None
        with self._going_on("reading"):
            try:
                file = path.open("rb")
            except FileNotFoundError:
                return []
            with file:
                with self._lock:
                    num_bytes = os.fstat(file.fileno()).st_size
                    assumed_tokens = self._num_tokens.setdefault(tenant, 0)
                content = read_log(file, path, label, num_bytes, self._max_tokens)
        if content is None:
            return []
        with self._lock:
            self._num_tokens[tenant] += content.num_tokens - assumed_tokens
        if content.damaged_bytes:
            logger.warning(
                "{}: {} of {} bytes are damaged and left out, {} tokens are whole",
                path, content.damaged_bytes, num_bytes, content.num_tokens,
            )  # fmt: skip
        if rewrite or content.damaged_bytes or content.num_tokens > 2 * self._max_tokens:
            with self._going_on("compacting"):
                self._rewrite(path, label, content, num_bytes)
        return content.documents

    def _rewrite(self, path: Path, label: Label, content: LogContent, num_bytes: int) -> None:
        """Replace a log by what was found in its first bytes, and by what was appended since."""
        records = [packed_record(document, label.salt) for document in content.documents]
        kept_tokens = sum(document.size for document in content.documents)
        with new_file(path) as (file, temporary):
            write_synced(file, b"".join([label.header(), *records]))
            with self._lock:
                with path.open("rb") as old:
                    old.seek(num_bytes)
                    appended = old.read()
                if appended:
                    write_synced(file, appended)
                temporary.replace(path)
                self._open_logs.close(label.name)
                self._num_tokens[label.name] += kept_tokens - content.num_tokens
        sync_folder(self.folder)

    def _read_labels(self) -> None:
        for path in files_of(self.folder):
            with path.open("rb") as file:
                found = read_label(file, path)
                num_bytes = os.fstat(file.fileno()).st_size
            if found is None or found[0].file_name != path.name:
                if num_bytes:
                    logger.warning("the header of {} is damaged; it is mended when its tenant is loaded", path)
                continue
            label, content_begin = found
            if label.sha256 != self._identity.sha256:
                raise TokenizerMismatchError(
                    f"{self.folder} holds what was learned with tokenizer {label.tokenizer_name} "
                    f"({label.sha256[:12]}), not with {self._identity.name} ({self._identity.sha256[:12]}); "
                    "name another folder, or remove this one"
                )
            if label.kind == "log":
                self._num_tokens[label.name] = (num_bytes - content_begin) // _ID_BYTES

    def _label(self, kind: FileKind, name: str) -> Label:
        return Label(kind, name, self._identity.name, self._identity.sha256)

    def _require_open(self) -> None:
        if self._closed.is_set():
            raise ConfigError("this log of what was learned is closed; open its folder again")

    @contextmanager
    def _going_on(self, action: str) -> Iterator[None]:
        """Log that something fails, the first time of several in a row, and go on behind the block."""
        try:
            yield
        except OSError as error:
            if action not in self._failing:
                self._failing.add(action)
                logger.warning(
                    "{}: {} fails ({}), going on without; check space and permissions there",
                    self.folder, action, error.strerror,
                )  # fmt: skip
        else:
            self._failing.discard(action)
