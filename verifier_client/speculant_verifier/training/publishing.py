"""Publishes trained adapters under a name.

Adapters are published atomically by a rename, so a reader sees either the complete old adapter or the complete new one.
A folder can't be renamed over another, so an adapter's name is a symbolic link: the name ``legal``, for example, points
to the folder ``legal.d/7``. The adapter's previous version is kept for rollback. Readers of an adapter resolve the
symbolic link once, before they read files.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path, PurePath

from loguru import logger

from speculant_graph.config import DraftModelConfig
from speculant_graph.errors import ConfigError, SpeculantError
from speculant_graph.files import replacing, sync, writing


def output_of(records: Path, draft_model: DraftModelConfig) -> Path:
    """Return the path at which training on a records folder publishes the adapters of a draft model."""
    return records / "adapters" / PurePath(draft_model.name).name


def require_publishable(target: Path) -> None:
    """Reject a name under which no adapter can be published; call this before training.

    Raises:
        ConfigError: the name exists and was not published by :func:`publish`, or its folder is missing or can't be
            written.
    """
    if os.path.lexists(target) and _version_of(target) is None:
        raise ConfigError(f"{target} exists and was not published by 'speculant train'; choose another name")
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise ConfigError(f"there is no folder {target.parent} that can be written; create it or choose another name")


def publish(folder: Path, target: Path) -> Path:
    """Publish a finished adapter folder under a name. Versions older than the previous one are deleted.

    Args:
        folder: the finished folder, which is moved; it must be on the same file system.
        target: the name, checked by :func:`require_publishable`; one process at a time may publish to it.

    Returns:
        The path to which the adapter folder was moved.

    Raises:
        GraphFileError: the folder can't be read back or moved; the published adapter stays in use.
    """
    versions = target.with_name(target.name + ".d")
    versions.mkdir(mode=0o700, exist_ok=True)  # weights reveal their training text
    earlier, previous = [path for path in versions.iterdir() if path.name.isdecimal()], _version_of(target)
    version = versions / str(1 + max((int(path.name) for path in earlier), default=0))
    with replacing(version, _require_readable, is_folder=True) as temporary:
        folder.rename(temporary)
    try:
        _point(target, version.name)
    finally:
        if _version_of(target) != version.name:
            shutil.rmtree(version, ignore_errors=True)
    for path in earlier:
        if path.name != previous:
            shutil.rmtree(path, ignore_errors=True)
    return version


def withdraw(target: Path, replaced: str, restored: str) -> None:
    """Unpublish an adapter that was rolled back, so that it is neither loaded nor the one to beat after a restart.

    The name then points to the restored version. If the restored adapter is not a version of the name, the name is
    removed. If the name points to another version than the replaced one, nothing changes. Errors are logged.

    Args:
        target: the name.
        replaced: resolved path of the rolled-back adapter's folder; empty for the base model.
        restored: resolved path of the restored adapter's folder; empty for the base model.
    """
    if _version_of(target) is None or str(target.resolve()) != replaced:
        return
    versions = target.resolve().parent
    try:
        if restored and Path(restored).parent == versions:
            _point(target, Path(restored).name)
        else:
            with writing(target):
                target.unlink()
                sync(target.absolute().parent)
    except SpeculantError as error:
        logger.warning("a restart loads the adapter that was rolled back: {}", error)


def _point(target: Path, version: str) -> None:
    """Atomically make a name point to a version."""
    versions = target.with_name(target.name + ".d")
    link = versions / "next"
    with writing(target):
        link.unlink(missing_ok=True)
        # A relative link, because link and target may be moved or mounted together.
        link.symlink_to(Path(versions.name) / version)
        link.replace(target)
        sync(target.absolute().parent)


def _require_readable(folder: Path) -> None:
    """Reject an adapter folder that contains a damaged file. Checking the files does not need torch."""
    from safetensors import SafetensorError, safe_open

    for file in folder.iterdir():
        if file.suffix == ".json":
            json.loads(file.read_bytes())
        elif file.suffix == ".safetensors":
            try:
                with safe_open(file, "np") as weights:  # checks the file's size against its tensors
                    weights.keys()
            except SafetensorError as error:
                raise ValueError(f"{file.name}: {error}") from error


def _version_of(target: Path) -> str | None:
    """Return the adapter version to which a name points; None if :func:`publish` did not create the name."""
    version = target.readlink() if target.is_symlink() else Path()
    is_ours = version.parent == Path(target.name + ".d") and version.name.isdecimal()
    return version.name if is_ours else None
