"""Adapters come and go by rename: a reader sees the old or the new, whole, whatever happens in between.

A folder can't be renamed over another, so an adapter's name is a link: ``legal`` points to ``legal.d/7``. The version
before it is kept for going back. Readers resolve the link once, then read (:func:`~.adapters.read_adapter` does).
"""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path

from speculant_graph.errors import ConfigError


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
    for file in (*folder.iterdir(), folder):
        _sync(file)
    versions = target.with_name(target.name + ".d")
    versions.mkdir(mode=0o700, exist_ok=True)  # weights reveal what they were trained on
    with (versions / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # that of a killed owner is released
        earlier, previous = [path for path in versions.iterdir() if path.name.isdecimal()], _present(target)
        version = versions / str(1 + max((int(path.name) for path in earlier), default=0))
        folder.rename(version)
        _sync(versions)
        link = versions / "next"
        link.unlink(missing_ok=True)
        # Relative: the two may be moved or mounted elsewhere together.
        link.symlink_to(Path(versions.name) / version.name)
        link.replace(target)
        _sync(target.absolute().parent)
        for path in earlier:
            if path.name != previous:
                shutil.rmtree(path, ignore_errors=True)
    return version


def _present(target: Path) -> str | None:
    """Return the number of the version that a name points to; None if it is nothing of ours."""
    version = target.readlink() if target.is_symlink() else Path()
    is_ours = version.parent == Path(target.name + ".d") and version.name.isdecimal()
    return version.name if is_ours else None


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
