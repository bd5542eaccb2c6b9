"""Adapters come and go by rename: a reader sees the old or the new, whole, whatever happens in between.

A folder can't be renamed over another, so an adapter's name is a link: ``legal`` points to ``legal.d/7``. The version
before it is kept for going back. Readers resolve the link once, then read (:func:`~.adapters.read_adapter` does).
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from speculant_graph.errors import ConfigError

_SUFFIX, _LOCK, _NEXT = ".d", "lock", "next"


def require_publishable(target: Path) -> None:
    """Refuse names at which no adapter can be published; ask before a training, not after it.

    Raises:
        ConfigError: something else than a link is there, or its folder is missing or can't be written.
    """
    if os.path.lexists(target) and _present(target) is None:
        raise ConfigError(f"{target} is there and was not published by 'speculant train'; choose another name")
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise ConfigError(f"there is no folder {target.parent} that can be written; make it or choose another name")


def publish(folder: Path, target: Path) -> Path:
    """Make a finished folder the adapter of a name. Versions older than the one before are deleted.

    Args:
        folder: on the same file system; it is moved.
        target: the name.

    Returns:
        Where the folder is now.

    Raises:
        ConfigError: the name is taken by something else.
    """
    require_publishable(target)
    for file in folder.iterdir():
        _sync(file)
    _sync(folder)
    with _versions(target) as versions:
        previous = _present(target)
        newest = max(_numbers(versions), default=0) + 1
        version = versions / str(newest)
        folder.rename(version)
        _sync(versions)
        _point(target, version)
        for version_number in set(_numbers(versions)) - {newest, previous}:
            shutil.rmtree(versions / str(version_number), ignore_errors=True)
    return version


@contextmanager
def _versions(target: Path) -> Iterator[Path]:
    """Yield the folder of a name's versions, locked meanwhile; the lock of a killed owner is released."""
    folder = target.with_name(target.name + _SUFFIX)
    folder.mkdir(mode=0o700, exist_ok=True)  # weights reveal what they were trained on
    with (folder / _LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


def _present(target: Path) -> int | None:
    """Return the number of the version that a name points to; None if it is nothing of ours."""
    if not target.is_symlink():
        return None
    version = target.readlink()
    is_ours = version.parent == Path(target.name + _SUFFIX) and version.name.isdecimal()
    return int(version.name) if is_ours else None


def _numbers(versions: Path) -> list[int]:
    return [int(path.name) for path in versions.iterdir() if path.name.isdecimal()]


def _point(target: Path, version: Path) -> None:
    link = version.parent / _NEXT
    link.unlink(missing_ok=True)
    # Relative: the two may be moved or mounted elsewhere together.
    link.symlink_to(Path(version.parent.name) / version.name)
    link.replace(target)
    _sync(target.absolute().parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
