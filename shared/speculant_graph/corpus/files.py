"""Which files make a corpus: single files, folders, patterns and standard input."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from speculant_graph.errors import CorpusError

STANDARD_INPUT = Path("-")
"""Names standard input wherever a file is named."""

TEXT_SUFFIXES = frozenset({
    ".c", ".cc", ".cpp", ".cs", ".css", ".go", ".h", ".hpp", ".html", ".java", ".js", ".jsonl", ".jsx",
    ".kt", ".lua", ".md", ".ndjson", ".pdf", ".php", ".pl", ".py", ".rb", ".rs", ".rst", ".scala", ".sh",
    ".sql", ".swift", ".tex", ".ts", ".tsx", ".txt", ".xml", ".yaml", ".yml",
})  # fmt: skip
"""What is taken from a folder, packed or not; files that are named or matched by a pattern may end in anything."""


class CorpusFile(NamedTuple):
    """A file whose text is in the token stream."""

    name: str
    """Its path as it was given; ``-`` is standard input."""
    size_bytes: int
    """Its size as it is stored."""
    sha256: str
    """Hex digest of its bytes as they are stored."""


def format_of(path: Path) -> tuple[str, bool]:
    """Return what a file's name means: its text suffix, lower case or empty, and whether gzip packed it.

    ``notes.TXT.gz`` gives ``(".txt", True)``.
    """
    suffixes = [suffix.lower() for suffix in path.suffixes]
    is_packed = suffixes[-1:] == [".gz"]
    suffixes = suffixes[:-1] if is_packed else suffixes
    return (suffixes[-1] if suffixes else "", is_packed)


def list_corpus_files(inputs: str | Path | Iterable[str | Path]) -> list[Path]:
    """List the files of a corpus once each, in the order given; files of a folder or a pattern are sorted.

    Args:
        inputs: files and named pipes; folders, which are searched with all their subfolders for
            :data:`TEXT_SUFFIXES`, hidden ones and links to folders left out; patterns such as ``docs/**/*.md``; ``-``
            for standard input. A file that exists is never read as a pattern, whatever characters its name has.

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
        found = _texts_in(path)
        if not found:
            raise CorpusError(f"{path} holds no text; name files, or a folder with text or source code")
        return sorted(found)
    if path.exists():
        return [path]
    if glob.has_magic(str(path)):
        matches = [Path(match) for match in glob.glob(str(path), recursive=True)]
        texts = (text for match in matches if match.is_dir() for text in _texts_in(match))
        found = sorted({*texts, *(match for match in matches if match.is_file())})
        if not found:
            raise CorpusError(f"pattern {path} matches no file; check it, and that the shell left it as it is")
        return found
    raise CorpusError(f"{path} does not exist; name text files, folders that hold them, or a pattern")


def _texts_in(folder: Path) -> list[Path]:
    found: list[Path] = []
    for parent, subfolders, names in os.walk(folder, onerror=_raise):
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        files = (Path(parent, name) for name in names if not name.startswith("."))
        found += (file for file in files if format_of(file)[0] in TEXT_SUFFIXES and file.is_file())
    return found


def _raise(error: OSError) -> None:
    raise error
