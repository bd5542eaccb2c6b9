"""Removes a tenant's learned text from a folder that no sidecar uses."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from speculant_graph.draft.learning.learned_files import SHARED, LearnedFiles
from speculant_graph.errors import ConfigError
from speculant_graph.types import Fingerprint

_UNLIMITED = 1 << 40


def forget_learned(learned: Path, tenant: str) -> bool:
    """Remove all learned text of a tenant; return whether there was any.

    Args:
        learned: the folder with the learned text of one graph.
        tenant: name of the tenant, any text.

    Raises:
        ConfigError: a sidecar uses the folder, the folder has no learned text, or the text can't be removed.
    """
    files = LearnedFiles(learned, _tokenizer_of(learned), _UNLIMITED)
    try:
        return files.forget(tenant)
    finally:
        files.close()


def _tokenizer_of(learned: Path) -> Fingerprint:
    path = learned / SHARED
    if not path.exists():
        raise ConfigError(f"{learned} is not a graph's folder of learned text", fix="check its name", field="learned")
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=0)) as connection:
            row = connection.execute("SELECT content FROM states WHERE name = 'tokenizer'").fetchone()
    except sqlite3.Error as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_BUSY:
            raise ConfigError(f"a process uses {learned}", fix="stop the sidecar", field="learned") from error
        raise ConfigError(f"{path} can't be read ({error})", fix="check it", field="learned") from error
    if row is None:
        raise ConfigError(f"{path} names no tokenizer", fix="remove the tenant's files yourself", field="learned")
    sha256, _, name = bytes(row[0]).decode(errors="replace").partition(" ")
    return Fingerprint(name, sha256, 0)
