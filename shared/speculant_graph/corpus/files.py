"""Which files make a corpus: single files, folders, patterns and standard input."""

from __future__ import annotations

import fnmatch
import glob
import os
import stat
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from speculant_graph.errors import CorpusError

STANDARD_INPUT = Path("-")
"""Names standard input wherever a file is named."""

TEXT_SUFFIXES = frozenset({
    ".c", ".cc", ".cpp", ".cs", ".css", ".go", ".h", ".hpp", ".html", ".java", ".js", ".jsonl", ".jsx",
    ".kt", ".lua", ".md", ".ndjson", ".pdf", ".php", ".pl", ".py", ".rb", ".rs", ".rst", ".scala", ".sh",
    ".sql", ".swift", ".tex", ".ts", ".tsx", ".txt", ".xml", ".yaml", ".yml",
})  # fmt: skip
"""What is taken from a folder, packed or not; files that are named or matched by a pattern may end in anything."""

PACKED_SUFFIXES = frozenset({".gz", ".zst"})
"""Endings of files that are unpacked while they are read."""


@dataclass(frozen=True, slots=True)
class CorpusFile:
    """A file whose text is in the token stream."""

    name: str
    """Its path as it was given; ``-`` is standard input."""
    size_bytes: int
    """Its size as it is stored."""
    sha256: str
    """Hex digest of its bytes as they are stored."""


@dataclass(frozen=True, slots=True)
class SkippedFile:
    """A file that was left out because it can't be read."""

    name: str
    """Its path as it was given; ``-`` is standard input."""
    reason: str
    """What was wrong with it, and what to do about it."""


def format_of(path: Path) -> tuple[str, str]:
    """Return what a file's name means: its text suffix and its packing suffix, lower case, either may be empty.

    ``notes.TXT.gz`` gives ``(".txt", ".gz")``.
    """
    suffixes = [suffix.lower() for suffix in path.suffixes]
    packing = suffixes.pop() if suffixes and suffixes[-1] in PACKED_SUFFIXES else ""
    return (suffixes[-1] if suffixes else "", packing)


def list_corpus_files(inputs: str | Path | Iterable[str | Path]) -> list[Path]:
    """List the files of a corpus once each, in the order given; files of a folder or a pattern are sorted.

    Args:
        inputs: files and named pipes; folders, which are searched with all their subfolders for
            :data:`TEXT_SUFFIXES`, hidden ones left out; patterns such as ``docs/**/*.md``; ``-`` for standard
            input. A file that exists is never read as a pattern, whatever characters its name has. Symbolic links
            are followed, and a folder that is reached in several ways is searched once.

    Raises:
        CorpusError: a path does not exist or can't be read, be it a subfolder, a pattern matches nothing, a folder
            holds no text, or nothing was named.
    """
    files: dict[Path, Path] = {}
    for path in map(Path, [inputs] if isinstance(inputs, str | Path) else inputs):
        try:
            found = _files_of(path)
        except OSError as error:
            raise CorpusError(
                f"{error.filename or path} can't be read ({error.strerror}); check its name and permissions"
            ) from error
        for file in found:
            files.setdefault(file if file == STANDARD_INPUT else file.resolve(), file)
    if not files:
        raise CorpusError("no corpus; name text files or folders that hold them")
    return list(files.values())


def _files_of(path: Path) -> list[Path]:
    if path == STANDARD_INPUT:
        return [path]
    if path.is_dir():
        found = _texts_in([path])
        if not found:
            raise CorpusError(f"{path} holds no text; name files, or a folder with text or source code")
        return found
    if path.exists():
        mode = path.stat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
            raise CorpusError(f"{path} is a device or a socket; name files, or '-' for standard input")
        return [path]
    if glob.has_magic(str(path)):
        matches = sorted(_matches_of(path))
        found = sorted({*_texts_in(matches), *(match for match in matches if match.is_file())})
        if not found:
            raise CorpusError(f"pattern {path} matches no file; check it, and that the shell left it as it is")
        return found
    raise CorpusError(f"{path} does not exist; name text files, folders that hold them, or a pattern")


def _texts_in(folders: Iterable[Path]) -> list[Path]:
    return sorted(
        file
        for folder in _folders_in(folders)
        for file in (folder / name for name in os.listdir(folder))
        if not file.name.startswith(".") and format_of(file)[0] in TEXT_SUFFIXES and file.is_file()
    )


def _matches_of(pattern: Path) -> list[Path]:
    """Return what a pattern matches; unlike :mod:`glob` it ends where links lead in circles, and reports errors."""
    parts = pattern.relative_to(pattern.anchor).parts
    found = [Path(pattern.anchor)]
    for part in (*parts, "*") if parts[-1] == "**" else parts:
        if part == "**":
            found = list(_folders_in(found))
        elif glob.has_magic(part):
            found = [
                folder / name
                for folder in found
                if folder.is_dir()
                for name in fnmatch.filter(os.listdir(folder), part)
                if part.startswith(".") or not name.startswith(".")
            ]
        else:
            found = [folder / part for folder in found if (folder / part).exists()]
    return found


def _folders_in(folders: Iterable[Path]) -> Iterator[Path]:
    """Stream those of some paths that are folders, and all below them but hidden ones, each once."""
    links = deque(path for path in folders if path.is_dir())  # followed last: what is not behind one keeps its name
    visited: set[tuple[int, int]] = set()
    while links:
        for folder, subfolders, _ in os.walk(links.popleft(), onerror=_raise):
            status = os.stat(folder)
            if (status.st_dev, status.st_ino) in visited:
                subfolders.clear()
                continue
            visited.add((status.st_dev, status.st_ino))
            subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
            paths = [Path(folder, name) for name in subfolders]
            links.extend(path for path in paths if path.is_symlink())
            yield Path(folder)


def _raise(error: OSError) -> None:
    raise error
