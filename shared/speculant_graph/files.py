"""Atomic file replacement: a file is written next to its target, or in a hidden folder if large, and then renamed."""

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
"""Number of bytes that a temporary name keeps of its target's name; file systems limit names to 255 bytes."""


@contextmanager
def workspace(output: Path) -> Iterator[Path]:
    """Make a hidden folder next to ``output`` in which to build the file, and remove the folder at the end.

    Only one process at a time may write ``output``; that process holds a lock on the folder. Files that a killed
    process has left in the folder are removed, too.

    Raises:
        GraphFileError: another process is writing the same file, or the folder can't be created.
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
                folder.rmdir()  # fails if the next process has begun


def _lock(folder: Path, output: Path) -> TextIO:
    while True:
        folder.mkdir(mode=0o700, exist_ok=True)
        # The previous process may remove folder and lock while this one acquires them.
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
    """Yield a temporary path to write to.

    The written file replaces ``path`` after it is on disk and has passed the check.

    After any error, including an interruption, ``path`` is unchanged, and no other file remains. If ``path`` is a link,
    its target is replaced. The new file gets the permissions and the owner of the old file.

    Args:
        path: the file to replace.
        check: reads the written file, and raises an error if the file has a problem.
        folder: the folder to write in, on the same file system; None writes next to the file.
        is_folder: whether the result is a new folder, at a path that does not exist yet.

    Raises:
        GraphFileError: the file can't be written, fails the check, or exists and is not an ordinary file.
    """
    target = Path(os.path.realpath(path))
    if is_folder and os.path.lexists(target):
        raise GraphFileError(f"{path} already exists", fix="choose another path")
    if target.is_symlink() or (target.exists() and not target.is_file()):
        raise GraphFileError(f"{path} exists and is not an ordinary file", fix="choose another path")
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
                    f"{path} is unchanged: its replacement can't be read back ({error})",
                    fix="check the disk, and report a bug if the disk is fine",
                ) from error
            with contextlib.suppress(FileNotFoundError):
                _keep_access(target, temporary)
            temporary.replace(target)
            with contextlib.suppress(PermissionError):  # without read permission, the name reaches the disk later
                sync(target.parent)
        finally:
            if temporary.is_dir():
                shutil.rmtree(temporary, ignore_errors=True)
            else:
                temporary.unlink(missing_ok=True)


def replace_bytes(path: Path, content: bytes) -> None:
    """Write a small file atomically, as :func:`replacing` does.

    Raises:
        GraphFileError: see :func:`replacing`.
    """

    def check(written: Path) -> None:
        if written.read_bytes() != content:
            raise ValueError("the disk holds different bytes")

    with replacing(path, check) as temporary:
        temporary.write_bytes(content)


def _keep_access(old: Path, new: Path) -> None:
    """Copy owner and permissions of the old file to the new one."""
    before, now = old.stat(), new.stat()
    if (before.st_uid, before.st_gid) != (now.st_uid, now.st_gid):
        with contextlib.suppress(PermissionError):
            os.chown(new, before.st_uid, before.st_gid)
    new.chmod(stat.S_IMODE(before.st_mode))


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """While ``path`` is written, convert the operating system's errors to a GraphFileError that explains them.

    Raises:
        GraphFileError: the operating system reported an error.
    """
    try:
        yield
    except OSError as error:
        raise GraphFileError(
            f"{path} can't be written ({error.strerror or error})", fix="check folder, permissions and space"
        ) from error


def write_all(file: BinaryIO, data: Any) -> None:
    """Write a whole array or byte string to an unbuffered file; one system call may write only a part of it."""
    rest = memoryview(data).cast("B")
    while rest:
        rest = rest[file.write(rest) :]


def _beginning(path: Path) -> str:
    return os.fsencode(path.name)[:_NAME_BYTES].decode(errors="ignore")


def sync(path: Path) -> None:
    """Flush a file or a folder to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
