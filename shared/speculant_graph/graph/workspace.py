"""The hidden folder beside a graph file in which it is built."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from speculant_graph.errors import GraphFileError
from speculant_graph.graph.container import HEAD_BYTES, is_graph_head, writing

_SUFFIX = ".building"
_NAME_BYTES = 200


@contextmanager
def workspace(output: Path) -> Iterator[Path]:
    """Make a folder beside ``output`` and remove it in the end.

    Folders that killed builds of the same file left behind are removed, too: a running build holds a lock.

    Raises:
        GraphFileError: the folder can't be made.
    """
    # File systems take names of 255 bytes; of long ones the beginning must do.
    prefix = f".{os.fsencode(output.name)[:_NAME_BYTES].decode(errors='ignore')}."
    unlocked = output.with_name(f"{prefix}{secrets.token_hex(8)}")
    folder = unlocked.with_name(unlocked.name + _SUFFIX)
    try:  # from before the folder is there: a signal may come at any moment
        with writing(output):
            for left_over in output.parent.glob(f"{glob.escape(prefix)}*{_SUFFIX}"):
                _remove_unless_used(left_over)
            unlocked.mkdir(mode=0o700)
            lock = (unlocked / "lock").open("w")
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            unlocked.rename(folder)  # only now is it one of those that others look for
        with lock:
            yield folder
    finally:
        shutil.rmtree(unlocked, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)


def checked_output(path: str | Path) -> Path:
    """Return where a graph file is to be written: ``path``, or what it points to if it is a link.

    Raises:
        GraphFileError: something else than a graph is there, or its folder does not exist or can't be written.
    """
    path = Path(path)
    path = path.resolve() if path.is_symlink() else path
    if path.exists() and not path.is_file():
        raise GraphFileError(f"{path} is there and is not an ordinary file; choose another path")
    if not path.parent.is_dir():
        raise GraphFileError(f"there is no folder {path.parent} for {path.name}; make it or choose another path")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise GraphFileError(f"folder {path.parent} can't be written; choose another path")
    if path.exists() and path.stat().st_size:
        with writing(path), path.open("rb") as file:
            if not is_graph_head(file.read(HEAD_BYTES)):  # a user's text, named by mistake
                raise GraphFileError(f"{path} is there and is not a graph; remove it or choose another path")
    return path


@contextmanager
def only_writer(path: Path) -> Iterator[None]:
    """Keep others that use this from replacing a graph file; what was in it is still in it inside the block.

    Raises:
        GraphFileError: the file can't be opened, or another process uses it.
    """
    while True:
        try:
            file = path.open("rb")
        except OSError as error:
            raise GraphFileError(
                f"{path} can't be opened ({error.strerror}); check the path of the graph file"
            ) from error
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise GraphFileError(f"another command is updating {path}; wait until it is done") from error
            # It may have been replaced between opening and locking.
            if path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat()):
                yield
                return


def _remove_unless_used(folder: Path) -> None:
    with contextlib.suppress(OSError), (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # an error if its build is running
        shutil.rmtree(folder, ignore_errors=True)
