"""The hidden folder beside a graph file in which it is built."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from speculant_graph.errors import GraphFileError
from speculant_graph.graph.container import writing

_SUFFIX = ".building"


@contextmanager
def workspace(output: Path) -> Iterator[Path]:
    """Make a folder beside ``output`` and remove it in the end.

    Folders that killed builds of the same file left behind are removed, too: a running build holds a lock.

    Raises:
        GraphFileError: the folder can't be made.
    """
    prefix = f".{output.name}."
    with writing(output):
        for left_over in output.parent.glob(f"{prefix}*{_SUFFIX}"):
            _remove_unless_locked(left_over)
        folder = Path(tempfile.mkdtemp(prefix=prefix, suffix=_SUFFIX, dir=output.parent))
        lock = (folder / "lock").open("w")
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    try:
        with lock:
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def checked_output(path: str | Path) -> Path:
    """Return where a graph file is to be written: ``path``, or what it points to if it is a link.

    Raises:
        GraphFileError: it is no ordinary file, or its folder does not exist or can't be written.
    """
    path = Path(path)
    path = path.resolve() if path.is_symlink() else path
    if path.exists() and not path.is_file():
        raise GraphFileError(f"{path} is there and is not an ordinary file; choose another path")
    if not path.parent.is_dir():
        raise GraphFileError(f"there is no folder {path.parent} for {path.name}; make it or choose another path")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise GraphFileError(f"folder {path.parent} can't be written; choose another path")
    return path


def _remove_unless_locked(folder: Path) -> None:
    try:
        with (folder / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
    except OSError:
        pass
