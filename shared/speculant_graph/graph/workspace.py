"""How files replace others: written beside them, whole or not at all, and large ones in a hidden folder."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from speculant_graph.errors import GraphFileError

_NAME_BYTES = 200
"""File systems take names of 255 bytes; of long ones the beginning must do."""


@contextmanager
def workspace(output: Path) -> Iterator[Path]:
    """Make a hidden folder beside ``output`` for the one process that writes it, and remove it in the end.

    What a killed process left there is removed, too: a running one holds a lock.

    Raises:
        GraphFileError: another process is writing the same file, or the folder can't be made.
    """
    folder = output.with_name(f".{_beginning(output)}.building")
    files = folder / "files"
    with writing(output):
        lock = _lock(folder, output)
    with lock:
        try:
            with writing(output):
                if files.exists():
                    shutil.rmtree(files)
                files.mkdir(mode=0o700)
            yield files
        finally:
            shutil.rmtree(files, ignore_errors=True)
            with contextlib.suppress(OSError):
                (folder / "lock").unlink()
                folder.rmdir()  # an error if the next process has begun


def _lock(folder: Path, output: Path) -> TextIO:
    while True:
        folder.mkdir(mode=0o700, exist_ok=True)
        # The process before may remove folder and lock while this one takes them.
        with contextlib.suppress(FileNotFoundError):
            lock = (folder / "lock").open("w")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                lock.close()
                raise GraphFileError(f"another command is writing {output}", fix="wait until it is done") from error
            if os.path.samestat(os.fstat(lock.fileno()), (folder / "lock").stat()):
                return lock


@contextmanager
def replacing(path: Path, folder: Path | None = None) -> Iterator[Path]:
    """Give a path to write a new file to, which replaces ``path`` at the end, on disk, or is gone after an error.

    Args:
        path: where the file will be.
        folder: where it is written, on the same file system; beside ``path`` if None.

    Raises:
        GraphFileError: the file can't be written.
    """
    temporary = (folder or path.parent) / f".{_beginning(path)}.{secrets.token_hex(4)}.tmp"
    with writing(path):
        try:
            yield temporary
            sync(temporary)
            temporary.replace(path)
            with contextlib.suppress(PermissionError):  # a folder to write into only: the name gets to disk in time
                sync(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Explain errors of the operating system while ``path`` is written.

    Raises:
        GraphFileError: an error occurred.
    """
    try:
        yield
    except OSError as error:
        raise GraphFileError(
            f"{path} can't be written ({error.strerror})", fix="check folder, permissions and space"
        ) from error


def write_all(file: BinaryIO, data: Any) -> None:
    """Write an array or bytes to an unbuffered file; a single call of the system may write less."""
    rest = memoryview(data).cast("B")
    while rest:
        rest = rest[file.write(rest) :]


def _beginning(path: Path) -> str:
    return os.fsencode(path.name)[:_NAME_BYTES].decode(errors="ignore")


def sync(path: Path) -> None:
    """Have a file or a folder written to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
