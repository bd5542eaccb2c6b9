"""Files of a corpus in any storage that fsspec opens, such as ``s3://bucket/text/`` or ``gs://bucket/a.jsonl``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from speculant_graph.corpus.hub import first_line
from speculant_graph.errors import CorpusError

_ADDRESS = re.compile(r"([a-z][a-z0-9+.-]+):/+(.+)")
_MAGIC = re.compile(r"[*?[]")
EXTRA = "storage"
"""Name of the extra that installs the packages for storage addresses."""


def address_of(path: Path) -> str | None:
    """Return the address that a path stands for, in fsspec's form; None if it is a path on this machine.

    ``Path`` turns the two slashes of an address into one; this function restores them. No local file is named like an
    address by chance, so settings for addresses can have the type ``Path``.
    """
    found = _ADDRESS.fullmatch(str(path))
    if found is None:
        return None
    scheme, rest = found.groups()
    return f"{scheme}://{'/' if scheme == 'file' else ''}{rest}"


def find_stored(address: str, is_text: Callable[[Path], bool]) -> list[tuple[Path, bool]]:
    """Return the files that an address names, sorted, each with True if the address names it directly.

    Args:
        address: address of a file or a folder, or a pattern. A folder is searched with all its subfolders.
        is_text: returns whether to include a file that was found in a folder.

    Raises:
        CorpusError: there is no file, it can't be read, or a package for such addresses is not installed.
    """
    with _explained(address):
        storage, name = _storage(address)
        magic = _MAGIC.search(name)
        if magic is not None:
            names = [each for each in storage.glob(name) if storage.isfile(each)]
        elif storage.isdir(name):
            names = storage.find(name)
        else:
            storage.info(name)  # raises the error of this address
            return [(Path(address), True)]
        num_above = len(name.rstrip("/")) if magic is None else magic.start() - 1
        shown = (each for each in sorted(names) if "/." not in each[num_above:])  # without hidden files
        found = [Path(storage.unstrip_protocol(each)) for each in shown]
    taken = [path for path in found if magic is not None or is_text(path)]
    if not taken:
        raise CorpusError(f"{address} holds no text; name files, a folder with text or source code, or a pattern")
    return [(path, False) for path in taken]


@contextmanager
def open_stored(address: str) -> Iterator[IO[bytes]]:
    """Open a file in storage for reading.

    Raises:
        CorpusError: the file can't be read, or a package for such addresses is not installed. Errors inside of the
            ``with`` block are also converted to ``CorpusError``.
    """
    with _explained(address):
        storage, name = _storage(address)
        with storage.open(name, "rb") as file:
            yield file


def _storage(address: str) -> tuple[Any, str]:
    import fsspec

    storage, name = fsspec.core.url_to_fs(address)
    return storage, name


@contextmanager
def _explained(address: str) -> Iterator[None]:
    try:
        yield
    except CorpusError:
        raise
    except ImportError as error:  # fsspec, or a package that it needs for the address
        raise CorpusError(
            f"{address} needs a package that is not installed", fix=f'run: pip install "speculant-graph[{EXTRA}]"'
        ) from error
    except Exception as error:  # every storage raises its own errors
        reason = "nothing is there" if isinstance(error, FileNotFoundError) else first_line(error)
        raise CorpusError(
            f"{address} can't be read ({reason})", fix="check the address and your access to it"
        ) from error
