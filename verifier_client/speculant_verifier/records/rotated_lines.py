"""Lines in files of a folder that together never take more than a limit: the oldest files are deleted.

Several processes may write to a folder. Each has files of its own, and all look at the folder under one lock, so that
the limit holds for what they write together. A logger's rotation knows neither: it keeps a number or an age of files,
and has one process move them.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from speculant_graph.draft.learned_files import append_whole

FILES = 8
"""A file is full when it holds this part of the limit, so that deleting one loses no more."""

_LOCK_TRIES, _LOCK_PAUSE_S = 500, 0.01


class RotatedLines:
    """Appends lines to files of this process; one thread at a time."""

    def __init__(self, folder: Path, prefix: str, max_bytes: int) -> None:
        """Make the folder if need be, for this user alone.

        Args:
            folder: where the files are; files of other names are left alone.
            prefix: how their names begin.
            max_bytes: most bytes of all of them, also those of other processes.

        Raises:
            OSError: that is not possible.
        """
        self._folder, self._prefix, self._max_bytes = folder, prefix, max_bytes
        self._descriptor: int | None = None
        self._path = folder
        self._make_folder()

    def append(self, data: bytes) -> Path:
        """Append a line, which ends in a newline, whole or not at all.

        Returns:
            The file that it is in.

        Raises:
            OSError: there is no room, say.
        """
        if len(data) > self._max_bytes:
            raise OSError(errno.EFBIG, f"{len(data)} bytes are over the limit of {self._max_bytes}")
        self._make_folder()
        with _locked(self._folder):
            self._append(data)
        return self._path

    def close(self) -> None:
        """Close the file that is open, if one is."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _append(self, data: bytes) -> None:
        if self._descriptor is not None:
            status = os.fstat(self._descriptor)
            # Another process may have deleted a file that was the oldest.
            if not status.st_nlink or status.st_size + len(data) > self._max_bytes // FILES:
                self.close()
        self._make_room(len(data))
        if self._descriptor is None:
            self._path = self._folder / f"{self._prefix}{time.time_ns():020d}-{secrets.token_hex(4)}.jsonl"
            self._descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o600)
        append_whole(self._descriptor, data)

    def _make_room(self, num_bytes: int) -> None:
        sizes = {path: path.stat().st_size for path in files_of(self._folder, self._prefix)}
        total = sum(sizes.values()) + num_bytes
        for path, size in sizes.items():
            if total <= self._max_bytes:
                break
            if self._descriptor is None or path != self._path:
                path.unlink(missing_ok=True)
                total -= size

    def _make_folder(self) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def files_of(folder: Path, prefix: str) -> list[Path]:
    """Return the files of a folder, the oldest first."""
    return sorted(folder.glob(f"{prefix}*.jsonl"))


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, which other processes hold for moments only.

    Raises:
        OSError: one holds it for seconds.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        for tries_left in range(_LOCK_TRIES, -1, -1):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not tries_left:
                    raise
                time.sleep(_LOCK_PAUSE_S)
        yield
    finally:
        os.close(descriptor)
