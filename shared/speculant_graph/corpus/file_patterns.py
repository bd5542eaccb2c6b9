"""Lists the files of a corpus: single files, folders, patterns, standard input."""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from speculant_graph.corpus.storage import address_of, find_stored
from speculant_graph.errors import CorpusError

STANDARD_INPUT = Path("-")
"""Path that stands for standard input wherever a file can be named."""

TEXT_SUFFIXES = frozenset({
    ".c", ".cc", ".cpp", ".cs", ".css", ".go", ".h", ".hpp", ".html", ".java", ".js", ".json", ".jsonl", ".jsx",
    ".kt", ".lua", ".md", ".ndjson", ".pdf", ".php", ".pl", ".py", ".rb", ".rs", ".rst", ".scala", ".sh",
    ".sql", ".swift", ".tex", ".ts", ".tsx", ".txt", ".xml", ".yaml", ".yml",
})  # fmt: skip
"""Suffixes of the files that are read from a folder, gzipped or not. A file that is named directly, or that matches a
pattern, may have any suffix."""

_KINDS = {stat.S_IFIFO: "named pipe", stat.S_IFSOCK: "socket", stat.S_IFCHR: "device", stat.S_IFBLK: "device"}


class ListedFile(NamedTuple):
    """A file of a corpus, not yet read."""

    path: Path
    """Path of the file; ``-`` is standard input."""
    is_named: bool = True
    """False if the file was found in a folder or by a pattern."""
    problem: str = ""
    """Reason why the file can't be read, with the fix; empty if no problem is known."""


def format_of(path: Path) -> tuple[str, bool]:
    """Return a file name's suffix in lower case (empty if it has none), and whether the file is gzipped.

    ``notes.TXT.gz`` gives ``(".txt", True)``.
    """
    suffixes = [suffix.lower() for suffix in path.suffixes]
    is_packed = suffixes[-1:] == [".gz"]
    suffixes = suffixes[:-1] if is_packed else suffixes
    return (suffixes[-1] if suffixes else "", is_packed)


def list_corpus_files(inputs: str | Path | Iterable[str | Path]) -> list[ListedFile]:
    """List the files of a corpus without duplicates, in the given order; files of a folder or a pattern are sorted.

    Args:
        inputs: files, named pipes, folders, patterns such as ``docs/**/*.md``, or ``-`` for standard input; also files,
            folders and patterns of object storage. A folder is searched, with all its subfolders, for files with
            :data:`TEXT_SUFFIXES`. Hidden files and folders, and links to folders, are left out. The name of an existing
            local file is never read as a pattern, even if it contains pattern characters.

    Returns:
        The files. Found entries that can't be read, such as a broken link or a subfolder without permission, have a
        ``problem``.

    Raises:
        CorpusError: a named path does not exist or can't be searched, a pattern matches nothing, a folder contains no
            text, or no input was named.
    """
    files: dict[Path, ListedFile] = {}
    problems: list[str] = []
    for path in map(Path, [inputs] if isinstance(inputs, str | Path) else inputs):
        try:
            for file in _files_of(path):
                files.setdefault(_identity(file.path), file)
        except CorpusError as error:
            problems.append(str(error))
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            problems.append(f"{path} can't be read ({reason}); check its name and permissions")
    if len(problems) == 1:
        raise CorpusError(problems[0])
    if problems:
        raise CorpusError(
            f"{len(problems)} inputs can't be read", fix="correct the named inputs", problems=tuple(problems)
        )
    if not files:
        raise CorpusError("no corpus; name text files or folders that contain them")
    return list(files.values())


def _identity(path: Path) -> Path:
    try:
        return path if path == STANDARD_INPUT or address_of(path) else path.resolve()
    except (OSError, RuntimeError):  # a cycle of links
        return path


def _files_of(path: Path) -> list[ListedFile]:
    if path == STANDARD_INPUT:
        return [ListedFile(path)]
    if (address := address_of(path)) is not None:
        return [ListedFile(*each) for each in find_stored(address, lambda found: format_of(found)[0] in TEXT_SUFFIXES)]
    if path.is_dir():
        os.scandir(path).close()  # raises if the folder can't be searched
        found = sorted(_texts_in(path))
        if not found:
            raise CorpusError(f"{path} contains no text; name files, or a folder with text or source code")
        return found
    if path.exists():
        return [ListedFile(path)]
    if glob.has_magic(str(path)):
        matches = [Path(match) for match in glob.glob(str(path), recursive=True)]
        in_folders = (text for match in matches if match.is_dir() for text in _texts_in(match))
        found = sorted({*in_folders, *(_found(match) for match in matches if not match.is_dir())})
        if not found:
            raise CorpusError(f"pattern {path} matches no file; check it, and quote it for the shell")
        return found
    if path.is_symlink():
        raise CorpusError(f"{path}: {_found(path).problem}")
    raise CorpusError(f"{path} does not exist; name text files, folders that contain them, or a pattern")


def _texts_in(folder: Path) -> Iterator[ListedFile]:
    unread: list[OSError] = []
    for parent, subfolders, names in os.walk(folder, onerror=unread.append):
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        files = (Path(parent, name) for name in names if not name.startswith("."))
        yield from (_found(file) for file in files if format_of(file)[0] in TEXT_SUFFIXES)
    for error in unread:
        problem = f"can't be searched ({error.strerror}); check the folder's permissions, or move it away"
        yield ListedFile(Path(error.filename), False, problem)


def _found(path: Path) -> ListedFile:
    """Return a found file, with its problem if one is visible without opening the file."""
    problem = ""
    try:
        kind = stat.S_IFMT(path.stat().st_mode)
        if kind in _KINDS:
            problem = f"is a {_KINDS[kind]}, which a search does not read; move it away, or name it explicitly"
    except OSError as error:
        problem = f"can't be read ({error.strerror}); check the file and its permissions"
        if path.is_symlink():
            problem = f"is a broken link (to {os.readlink(path)}); repair or remove it"
    return ListedFile(path, False, problem)
