"""Graph files in object storage: downloaded once into a cache folder, checked, and mapped from there."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from loguru import logger

from speculant_graph.corpus.hub import first_line
from speculant_graph.corpus.storage import EXTRA, address_of
from speculant_graph.errors import GraphFileError
from speculant_graph.files import replacing, workspace
from speculant_graph.graph.ngrams import NgramGraph


def cache_folder() -> Path:
    """Return the folder of downloaded graphs, in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "speculant" / "graphs"


def local_graph(path: Path) -> Path:
    """Return the absolute local path of a graph file. A file in object storage is downloaded unless the cache has it.

    Older downloads from the same address are removed; processes that have mapped a removed file can still read it.

    Raises:
        GraphFileError: there is no file at the address, the file can't be read or stored, its checksums are wrong, or a
            package for this kind of address is not installed.
    """
    address = address_of(path)
    if address is None:
        return path.absolute()
    try:
        import fsspec

        storage, name = fsspec.core.url_to_fs(address)
        version = str(storage.ukey(name))  # a hash of content, or of time and size; it does not read the file
    except ImportError as error:  # fsspec, or a package that it needs for the address
        raise GraphFileError(
            f"{address} needs a package that is not installed", fix=f'run: pip install "speculant-graph[{EXTRA}]"'
        ) from error
    except Exception as error:  # every storage raises its own errors
        raise _unread(address, error) from error
    stem = hashlib.sha256(address.encode()).hexdigest()[:16]
    kept = cache_folder() / f"{stem}-{hashlib.sha256(version.encode()).hexdigest()[:16]}.pkl"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        logger.info("downloading {} to {}", address, kept)
        with workspace(kept) as folder, replacing(kept, NgramGraph.load, folder) as temporary:
            try:
                storage.get_file(name, str(temporary))
            except Exception as error:
                raise _unread(address, error) from error
            _require_graph(address, temporary)
        for older in kept.parent.glob(f"{stem}-*.pkl"):
            if older != kept:
                older.unlink(missing_ok=True)
    return kept


def _require_graph(address: str, file: Path) -> None:
    try:
        NgramGraph.load(file, verify=True)
    except GraphFileError as error:
        raise GraphFileError(
            str(error).replace(str(file), address).partition(";")[0], fix="copy it there again, or build it again"
        ) from error


def _unread(address: str, error: Exception) -> GraphFileError:
    reason = "there is no such file" if isinstance(error, FileNotFoundError) else first_line(error)
    return GraphFileError(f"{address} can't be downloaded ({reason})", fix="check the address and your access to it")
