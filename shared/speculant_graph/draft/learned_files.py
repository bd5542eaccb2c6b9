"""The folder of what was learned: its lock, logs open for appending, and files that replace others whole."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, get_args

from speculant_graph.draft.learned_records import FileKind, Label
from speculant_graph.errors import ConfigError

MAX_OPEN_LOGS = 32
"""Logs kept open; of more tenants the longest unused are closed."""

_HASHED_NAME = "?" * 64
_TEMPORARY = ".new"


@dataclass(frozen=True, slots=True)
class OpenLog:
    """A log that is open for appending."""

    descriptor: int
    salt: int
    """That of its label."""


class OpenLogs:
    """The logs of a folder that are open for appending."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._logs: OrderedDict[str, OpenLog] = OrderedDict()  # the longest unused first

    def get(self, label: Label) -> OpenLog:
        """Return a log, which is opened or made if need be.

        Raises:
            OSError: that is not possible.
        """
        log = self._logs.get(label.name)
        if log is not None:
            self._logs.move_to_end(label.name)
            return log
        while len(self._logs) >= MAX_OPEN_LOGS:
            self.close(next(iter(self._logs)))
        descriptor = os.open(self._folder / label.file_name, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            if not os.fstat(descriptor).st_size:
                append_whole(descriptor, label.header())
        except BaseException:
            os.close(descriptor)
            raise
        log = self._logs[label.name] = OpenLog(descriptor, label.salt)
        return log

    def close(self, tenant: str) -> None:
        """Close a tenant's log if it is open."""
        log = self._logs.pop(tenant, None)
        if log is not None:
            os.close(log.descriptor)

    def close_all(self) -> None:
        """Close those that are open."""
        while self._logs:
            self.close(next(iter(self._logs)))


def files_of(folder: Path) -> list[Path]:
    """Return the logs and states in a folder."""
    return [path for kind in get_args(FileKind) for path in folder.glob(f"{_HASHED_NAME}.{kind}")]


def lock_folder(folder: Path) -> int:
    """Make the folder if need be, and take it for this process; return the descriptor that holds the lock.

    Raises:
        ConfigError: another process has it.
        OSError: it can't be made or written.
    """
    if not folder.is_dir():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(PermissionError):  # a folder to write into only
            sync_folder(folder.parent)
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            raise ConfigError(
                f"{folder} is in use by another process that learns; stop that one or name another folder"
            ) from error
        raise
    return descriptor


def unlock_folder(descriptor: int) -> None:
    """Give a folder back."""
    fcntl.flock(descriptor, fcntl.LOCK_UN)  # closing alone does not, where a forked child has the descriptor, too
    os.close(descriptor)


def remove_temporaries(folder: Path) -> None:
    """Remove what a killed process had not finished."""
    for path in folder.glob(f"{_HASHED_NAME}.*{_TEMPORARY}"):
        path.unlink()


@contextmanager
def new_file(path: Path) -> Iterator[tuple[BinaryIO, Path]]:
    """Open a file that is to replace ``path``, and say where it is; remove it if it has not been moved from there."""
    temporary = path.with_name(path.name + _TEMPORARY)
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            yield file, temporary
    finally:
        temporary.unlink(missing_ok=True)


def write_synced(file: BinaryIO, data: bytes) -> None:
    """Write, and wait until it is on disk."""
    file.write(data)
    file.flush()
    os.fsync(file.fileno())


def append_whole(descriptor: int, data: bytes) -> None:
    """Append all of ``data`` in one call of the system, or nothing.

    Raises:
        OSError: there is no room, say.
    """
    end = os.fstat(descriptor).st_size
    try:
        rest = memoryview(data)
        while rest:  # a second time only on a full disk, to be told the reason
            rest = rest[os.write(descriptor, rest) :]
    except BaseException:
        with contextlib.suppress(OSError):  # readers find the records behind it
            os.ftruncate(descriptor, end)
        raise


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
