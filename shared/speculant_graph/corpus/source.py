"""Reads a file of the corpus: counts, hashes, unpacks and decodes its bytes."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, NamedTuple

from speculant_graph.corpus.file_patterns import STANDARD_INPUT, format_of
from speculant_graph.corpus.storage import address_of, open_stored
from speculant_graph.errors import CorpusError
from speculant_graph.types import FileName

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

    Unpacked = gzip.GzipFile | io.BufferedReader["_Counted"]
    """A file opened for reading its unpacked bytes."""

FormatName = Literal["text", "lines", "json", "pdf"]
"""How a file is read: plain text, JSON Lines, one JSON value, or PDF."""

UTF_8 = "utf-8-sig"
"""Python's name for UTF-8 with or without a byte order mark."""

_FORMATS: dict[str, FormatName] = {".pdf": "pdf", ".jsonl": "lines", ".ndjson": "lines", ".json": "json"}
_BLOCK_BYTES = 1 << 20


class CorpusFile(NamedTuple):
    """A corpus file whose tokens are in the token stream."""

    name: FileName
    """Path of the file as given; ``-`` is standard input."""
    size_bytes: int
    """Size of the stored file in bytes."""
    sha256: str
    """SHA-256 digest of the stored bytes, in hexadecimal."""
    encoding: str = UTF_8
    """Encoding of the file's text; meaningless for PDF."""
    text_field: str = ""
    """Name of the records' text field; empty if the file was not read as records."""


class SkippedFile(NamedTuple):
    """A file that was skipped, or in which records were skipped."""

    name: FileName
    """Path of the file as given."""
    reason: str
    """Problem of the file, or of its first skipped record."""
    num_records: int = 0
    """Number of skipped records if other records of the file were read; 0 if the whole file was skipped."""

    def __str__(self) -> str:
        """Return the file's name and problem as one readable line."""
        more = f" (and {self.num_records - 1:,} more of its records)" if self.num_records > 1 else ""
        return f"{self.name}: {self.reason}{more}"


class Source:
    """A file of the corpus that is read once, from its beginning to its end."""

    def __init__(
        self,
        path: Path,
        *,
        stored: Path | None = None,
        on_bytes: Callable[[int], None] | None = None,
    ) -> None:
        """Make a source. The file is opened when its documents are read.

        Args:
            path: path of the file as given.
            stored: file with a copy of the bytes, if they can't be read twice from the path.
            on_bytes: called with the size of every block read, in bytes. Without this callback, the blocks are added to
                the file's digest.
        """
        self.path = path
        self.stored = stored
        suffix, self.is_packed = format_of(path)
        self.format: FormatName = _FORMATS.get(suffix, "text")
        """Format that decides how the file is read."""
        self.encoding = UTF_8
        """Encoding of the file's text."""
        self.extracted: Path | None = None
        """File with the text extracted from a PDF, in UTF-8, if any."""
        self.span: tuple[int, int] | None = None
        """Byte offsets of the start and the end of the part to read; None to read the whole file. A file that is read
        in parts is UTF-8 and not gzipped."""
        self.num_bytes = 0
        """Number of bytes of the stored file that were read so far."""
        self._on_bytes = on_bytes
        self._digest = hashlib.sha256()

    def reopened(self, on_bytes: Callable[[int], None] | None = None) -> Source:
        """Return an unread source of the same file with the same format and encoding."""
        source = Source(self.path, stored=self.stored, on_bytes=on_bytes)
        source.format, source.encoding, source.extracted = self.format, self.encoding, self.extracted
        source.span = self.span
        return source

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for reading the same file in another process, without the digest, which can't be pickled."""
        return {name: getattr(self, name) for name in ("path", "stored", "format", "encoding", "extracted", "span")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore an unread source from its pickled state."""
        self.__init__(state["path"])  # type: ignore[misc]
        self.__dict__ |= state

    @property
    def name(self) -> str:
        """Path or address of the file as given."""
        return address_of(self.path) or str(self.path)

    @property
    def label(self) -> str:
        """Name of the file in messages."""
        return "standard input" if self.path == STANDARD_INPUT else self.name

    def size(self) -> int:
        """Return the size of the whole stored file in bytes.

        Raises:
            CorpusError: the file can't be read.
        """
        with self._explained():
            if self.stored is None and address_of(self.path) is not None:
                with self._open_stored() as file:
                    return file.seek(0, os.SEEK_END)
            return (self.stored or self.path).stat().st_size

    def window(self, start: int, num_bytes: int) -> bytes:
        """Return up to ``num_bytes`` bytes of the stored file, from the offset ``start``.

        Raises:
            CorpusError: the file can't be read.
        """
        with self._explained(), self._open_stored() as stored:
            stored.seek(start)
            return stored.read(num_bytes)

    def describe(self, text_field: str) -> CorpusFile:
        """Return the metadata of the file, after it was read completely.

        Args:
            text_field: text field of its records.
        """
        has_records = self.format in {"lines", "json"}
        return CorpusFile(
            self.name,
            self.num_bytes,
            self._digest.hexdigest(),
            self.encoding,
            text_field if has_records else "",
        )

    def take(self, block: bytes) -> None:
        """Count a block's bytes; report their number to ``on_bytes`` if given, otherwise add them to the digest."""
        self.num_bytes += len(block)
        if self._on_bytes is None:
            self._digest.update(block)
        else:
            self._on_bytes(len(block))

    @contextmanager
    def open(self) -> Iterator[Unpacked]:
        """Open the file for reading its unpacked bytes.

        Raises:
            CorpusError: the file can't be read, is damaged or is not in its encoding; errors inside of the ``with``
                block are converted, too.
        """
        with self._explained(), self._open_stored() as stored:
            counted = io.BufferedReader(_Counted(stored, self), _BLOCK_BYTES)
            yield gzip.GzipFile(fileobj=counted) if self.is_packed else counted

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise CorpusError(f"{self.label}: damaged archive ({error}); copy or compress the file again") from error
        except UnicodeError as error:
            name = "UTF-8" if self.encoding == UTF_8 else self.encoding
            reason = error.reason if isinstance(error, UnicodeDecodeError) else error
            raise CorpusError(
                f"{self.label}: is not {name} ({reason})",
                fix="set {field}, or convert the file to UTF-8",
                field="graph.encoding",
            ) from error
        except OSError as error:
            raise CorpusError(
                f"{self.label}: can't be read ({error.strerror}); check the file and its permissions"
            ) from error

    @contextmanager
    def _open_stored(self) -> Iterator[IO[bytes]]:
        if self.stored is None and self.path == STANDARD_INPUT:
            with nullcontext(sys.stdin.buffer) as file:
                yield file
        elif self.stored is None and (address := address_of(self.path)) is not None:
            with open_stored(address) as file:
                yield self._at_span(file)
        else:
            with (self.stored or self.path).open("rb") as file:
                yield self._at_span(file)

    def _at_span(self, file: IO[bytes]) -> IO[bytes]:
        if self.span is not None:  # pipes can't seek
            file.seek(self.span[0])
        return file

    @contextmanager
    def open_text(self) -> Iterator[io.TextIOWrapper]:
        r"""Open the file for reading its decoded text, with line ends as ``\n``. Raises as :meth:`open`.

        Invalid UTF-8 in JSON Lines becomes unpaired surrogates, as with ``surrogateescape``.
        """
        errors = "surrogateescape" if self.format == "lines" and self.encoding == UTF_8 else "strict"
        with self.open() as file:
            yield io.TextIOWrapper(file, encoding=self.encoding, errors=errors)

    def stored_blocks(self, on_bytes: Callable[[int], None]) -> Iterator[bytes]:
        """Read the stored bytes of the file, in blocks.

        Args:
            on_bytes: called with the size of each block in bytes.

        Raises:
            CorpusError: the file can't be read.
        """
        with self._explained(), self._open_stored() as stored:
            while block := stored.read(_BLOCK_BYTES):
                on_bytes(len(block))
                yield block

    def blocks(self) -> Iterator[bytes]:
        """Read the unpacked file in blocks. Raises as :meth:`open`."""
        with self.open() as file:
            while block := file.read(_BLOCK_BYTES):
                yield block


class _Counted(io.RawIOBase):
    """Reads the stored bytes of a file, and has the file's source count them."""

    def __init__(self, stored: IO[bytes], source: Source) -> None:
        super().__init__()
        self._stored, self._source = stored, source

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer)
        span = self._source.span
        most = len(view) if span is None else min(len(view), span[1] - span[0] - self._source.num_bytes)
        block = self._stored.read(most)
        view[: len(block)] = block
        self._source.take(block)
        return len(block)
