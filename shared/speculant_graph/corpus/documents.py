"""Which files make a corpus (single ones, folders, patterns, standard input), and their documents.

Files are plain text, JSON records or PDF, packed by gzip or not.
"""

from __future__ import annotations

import glob
import gzip
import hashlib
import io
import json
import logging
import os
import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

import numpy as np
from loguru import logger
from numpy.typing import NDArray

from speculant_graph.config import GraphConfig
from speculant_graph.errors import CorpusError
from speculant_graph.extras import needed_for
from speculant_graph.types import FileName

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

    _Unpacked = gzip.GzipFile | io.BufferedReader["_Counted"]

STANDARD_INPUT = Path("-")
"""Names standard input wherever a file is named."""

TEXT_SUFFIXES = frozenset({
    ".c", ".cc", ".cpp", ".cs", ".css", ".go", ".h", ".hpp", ".html", ".java", ".js", ".jsonl", ".jsx",
    ".kt", ".lua", ".md", ".ndjson", ".pdf", ".php", ".pl", ".py", ".rb", ".rs", ".rst", ".scala", ".sh",
    ".sql", ".swift", ".tex", ".ts", ".tsx", ".txt", ".xml", ".yaml", ".yml",
})  # fmt: skip
"""What is taken from a folder, packed or not; files that are named or matched by a pattern may end in anything."""

_BLOCK_BYTES = 1 << 20
_LISTED_FIELDS = 12


class CorpusFile(NamedTuple):
    """A file whose text is in the token stream."""

    name: FileName
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


class Source:
    """A file of the corpus while it is read from its beginning to its end, once."""

    def __init__(self, path: Path) -> None:
        """Name the file; it is opened when its documents are asked for."""
        self.path = path
        self.suffix, self._is_packed = format_of(path)
        self.num_bytes = 0
        """Bytes of the stored file read so far."""
        self._digest = hashlib.sha256()

    @property
    def label(self) -> str:
        """The file's name in messages to people."""
        return "standard input" if self.path == STANDARD_INPUT else str(self.path)

    def describe(self) -> CorpusFile:
        """Return the record of the file, after all of it was read."""
        return CorpusFile(str(self.path), self.num_bytes, self._digest.hexdigest())

    def take(self, block: bytes) -> None:
        """Count and digest bytes that were read."""
        self.num_bytes += len(block)
        self._digest.update(block)

    @contextmanager
    def open(self) -> Iterator[_Unpacked]:
        """Open the file, unpacked.

        Raises:
            CorpusError: it can't be read, or is damaged or no UTF-8; so also for errors inside of the block.
        """
        try:
            with nullcontext(sys.stdin.buffer) if self.path == STANDARD_INPUT else self.path.open("rb") as stored:
                counted = io.BufferedReader(_Counted(stored, self), _BLOCK_BYTES)
                yield gzip.GzipFile(fileobj=counted) if self._is_packed else counted
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise CorpusError(f"{self.label}: damaged archive ({error}); copy or pack the file again") from error
        except UnicodeDecodeError as error:
            raise CorpusError(
                f"{self.label}: is not UTF-8 ({error.reason}); convert the file first, as by 'iconv -t UTF-8'"
            ) from error
        except OSError as error:
            raise CorpusError(
                f"{self.label}: can't be read ({error.strerror}); check the file and its permissions"
            ) from error


class _Counted(io.RawIOBase):
    """The stored bytes of a file, taken by a source on their way."""

    def __init__(self, stored: IO[bytes], source: Source) -> None:
        super().__init__()
        self._stored, self._source = stored, source

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer)
        block = self._stored.read(len(view))
        view[: len(block)] = block
        self._source.take(block)
        return len(block)


@dataclass(frozen=True, slots=True)
class Document:
    """One text of its own inside of a file, or the token ids of one."""

    label: str
    """Where it is, for messages: the file, and the line or record in it."""
    texts: Iterator[str]
    """Its text in blocks of any size; to be read before the next document. Nothing if there are ids."""
    token_ids: NDArray[np.uint32] | None = None
    """Its token ids, shape ``[num_tokens]``, if the file has these instead of text."""


def read_documents(source: Source, config: GraphConfig, vocabulary_size: int) -> Iterator[Document]:
    r"""Stream the documents of a file, whose name determines how it is read; all of the file has been read at the end.

    ``.jsonl`` and ``.ndjson`` hold one record a line, ``.json`` an array of records or one of them: each record is a
    document. ``.pdf`` is one document, pages joined by newlines. Everything else is one document of plain text in
    UTF-8, whose line ends are read as ``\n``. A record, a PDF and all of a ``.json`` file are held whole in memory,
    plain text is not.

    Args:
        source: the file.
        config: ``text_field`` is where a record has its text or its token ids; dots lead into nested objects, unless it
            has a field of that very name.
        vocabulary_size: token ids of records must be below.

    Raises:
        CorpusError: the file can't be read, unpacked, decoded or parsed; the message names file, record and fix.
        ModuleNotFoundError: the module that reads such files is not installed.
    """
    if source.suffix == ".pdf":
        yield Document(source.label, iter([_read_pdf(source)]))
    elif source.suffix in {".jsonl", ".ndjson", ".json"}:
        for label, record in _read_json(source) if source.suffix == ".json" else _read_json_lines(source):
            yield _document_of(record, label, config.text_field, vocabulary_size)
    else:
        yield Document(source.label, _read_text(source))


def _read_text(source: Source) -> Iterator[str]:
    with source.open() as file:
        reader = _text_reader(file)
        text = reader.read(_BLOCK_BYTES)
        if "\0" in text:
            raise CorpusError(f"{source.label}: looks binary; leave it out, or convert it to UTF-8 if it is text")
        if text.isspace() and len(text) < _BLOCK_BYTES:  # all of the file is blank
            return
        while text:
            yield text
            text = reader.read(_BLOCK_BYTES)


def _text_reader(file: _Unpacked) -> io.TextIOWrapper:
    return io.TextIOWrapper(file, encoding="utf-8-sig")  # without a byte order mark


def _read_pdf(source: Source) -> str:
    with needed_for(f"reading {source.label}", "build"):
        from pypdf import PdfReader
        from pypdf.errors import EmptyFileError

    logging.getLogger("pypdf").setLevel(logging.ERROR)  # it reports every flaw that it gets over
    with source.open() as stored:
        file = io.BytesIO(stored.read())
    try:
        text = "\n".join(page.extract_text() for page in PdfReader(file).pages)
    except EmptyFileError:
        return ""
    except Exception as error:  # damaged and encrypted files make the library raise whatever its code meets
        raise CorpusError(
            f"{source.label}: is no PDF that can be read ({type(error).__name__}: {error}); repair it or leave it out"
        ) from error
    if not text.strip():
        logger.warning("{} has pages but no text, as scans do; recognise its text first", source.label)
        return ""
    # Fonts may map glyphs to halves of surrogate pairs, which are no text.
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _read_json_lines(source: Source) -> Iterator[tuple[str, object]]:
    """Stream the values of JSON Lines with a label for each, such as ``a.jsonl: line 3``; blank lines are left out."""
    with source.open() as file:
        for line_number, line in enumerate(_text_reader(file), start=1):
            if line.strip():
                label = f"{source.label}: line {line_number}"
                yield label, _parse(line, label)


def _read_json(source: Source) -> Iterator[tuple[str, object]]:
    """Stream the elements of a JSON array with a label for each, or the one value that is no array."""
    with source.open() as file:
        text = _text_reader(file).read()
    if not text.strip():
        return
    value = _parse(text, source.label)
    if isinstance(value, list):
        for index, record in enumerate(value, start=1):
            yield f"{source.label}: record {index}", record
    else:
        yield source.label, value


def _parse(text: str, label: str) -> object:
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CorpusError(
            f"{label}: is no JSON ({error}); correct it, or name the file .jsonl if it holds one record a line, "
            ".txt to read it as plain text"
        ) from error
    return value


def _document_of(record: object, label: str, field: str, vocabulary_size: int) -> Document:
    """Return one record: a string itself, or what an object has in a field: text, or a list of token ids."""
    fix = "set graph.text_field to one with text or token ids"
    value = record if isinstance(record, str) else _field(record, label, field, fix)
    if isinstance(value, list) and all(type(item) is int for item in value):
        if value and not 0 <= min(value) <= max(value) < vocabulary_size:
            raise CorpusError(
                f"{label}: field {field!r} has other ids than 0 to {vocabulary_size - 1}; "
                "set graph.tokenizer_name to the tokenizer of these ids"
            )
        return Document(label, iter(()), np.array(value, np.uint32))
    if not isinstance(value, str):
        raise CorpusError(f"{label}: field {field!r} is neither text nor token ids; {fix}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise CorpusError(
            f"{label}: half of a surrogate pair ({value[error.start]!r}) is no character; correct the text"
        ) from error
    return Document(label, iter([value]))


def _field(record: object, label: str, field: str, fix: str) -> object:
    value = record
    for name in [field] if isinstance(record, dict) and field in record else field.split("."):
        if not isinstance(value, dict) or name not in value:
            fields = ", ".join(list(value)[:_LISTED_FIELDS]) if isinstance(value, dict) else ""
            raise CorpusError(f"{label}: no field {field!r} (there are: {fields or 'none'}); {fix}")
        value = value[name]
    return value
