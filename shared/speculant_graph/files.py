"""How files replace others: written next to them, whole or not at all, and large ones in a hidden folder."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from speculant_graph.errors import GraphFileError, SpeculantError

_NAME_BYTES = 200
"""File systems take names of 255 bytes; of long ones the beginning must do."""


@contextmanager
def workspace(output: Path) -> Iterator[Path]:
    """Make a hidden folder next to ``output`` for the one process that writes it, and remove it in the end.

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
def replacing(
    path: Path, check: Callable[[Path], object], folder: Path | None = None, *, is_folder: bool = False
) -> Iterator[Path]:
    """Give a path to write to; what is there at the end replaces ``path``, once it is on disk and passed the check.

    After any error, an interruption included, ``path`` is as it was, and nothing else is left. A link stays a link: the
    file that it points to is replaced. Permissions and owner of the old file stay.

    Args:
        path: the file.
        check: reads back what was written; an error of it says what is wrong there.
        folder: where it is written, on the same file system; next to the file if None.
        is_folder: a new folder is written, at a path where nothing is.

    Raises:
        GraphFileError: the file can't be written, failed the check, or is there and is no ordinary file.
    """
    target = Path(os.path.realpath(path))
    if is_folder and os.path.lexists(target):
        raise GraphFileError(f"{path} is there already", fix="choose another path")
    if target.is_symlink() or (target.exists() and not target.is_file()):
        raise GraphFileError(f"{path} is there and is not an ordinary file", fix="choose another path")
    temporary = (folder or target.parent) / f".{_beginning(target)}.{secrets.token_hex(4)}.tmp"
    with writing(path):
        try:
            yield temporary
            for file in temporary.rglob("*") if is_folder else ():
                sync(file)
            sync(temporary)
            try:
                check(temporary)
            except (SpeculantError, ValueError) as error:
                raise GraphFileError(
                    f"{path} stays as it was: what was to replace it can't be read back ({error})",
                    fix="check the disk, and report it if that is well",
                ) from error
            with contextlib.suppress(FileNotFoundError):
                _keep_access(target, temporary)
            temporary.replace(target)
            with contextlib.suppress(PermissionError):  # a folder to write into only: the name gets to disk in time
                sync(target.parent)
        finally:
            if temporary.is_dir():
                shutil.rmtree(temporary, ignore_errors=True)
            else:
                temporary.unlink(missing_ok=True)


def replace_bytes(path: Path, content: bytes) -> None:
    """Write a small file, as :func:`replacing` does.

    Raises:
        GraphFileError: see there.
    """

    def check(written: Path) -> None:
        if written.read_bytes() != content:
            raise ValueError("other bytes are on the disk")

    with replacing(path, check) as temporary:
        temporary.write_bytes(content)


def _keep_access(old: Path, new: Path) -> None:
    """Give a new file owner and permissions of the old one."""
    before, now = old.stat(), new.stat()
    if (before.st_uid, before.st_gid) != (now.st_uid, now.st_gid):
        with contextlib.suppress(PermissionError):
            os.chown(new, before.st_uid, before.st_gid)
    new.chmod(stat.S_IMODE(before.st_mode))


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
            f"{path} can't be written ({error.strerror or error})", fix="check folder, permissions and space"
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
