"""One file as blocks of bytes: read once, counted and digested on the way, unpacked if it is packed."""

from __future__ import annotations

import hashlib
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Protocol

from speculant_graph.corpus.files import STANDARD_INPUT, CorpusFile, format_of
from speculant_graph.errors import CorpusError
from speculant_graph.extras import needed_for

_BLOCK_BYTES = 1 << 20
# How much a packed block holds is not known before: a hundred times its size is not rare.
_PACKED_BLOCK_BYTES = 1 << 16
_GZIP_WINDOW_BITS = 31
_LARGEST_ZSTD_WINDOW = 1 << 31


class _Frame(Protocol):
    """One part of an archive: a gzip member or a zstd frame."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, /) -> bytes: ...


class Source:
    """A file of the corpus while it is read from its beginning to its end."""

    def __init__(self, path: Path) -> None:
        """Name the file; it is opened when its blocks are asked for."""
        self.path = path
        self.suffix, self._packing = format_of(path)
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

    def blocks(self) -> Iterator[bytes]:
        """Stream the file's unpacked bytes in non-empty blocks.

        Raises:
            CorpusError: the file can't be read, or its archive is damaged or ends too soon.
            ModuleNotFoundError: it is packed by zstd and the extra ``build`` is not installed.
        """
        if self._packing == ".gz":
            return self._unpacked(lambda: zlib.decompressobj(_GZIP_WINDOW_BITS), zlib.error)
        if self._packing == ".zst":
            with needed_for(f"unpacking {self.label}", "build"):
                import zstandard
            unpacker = zstandard.ZstdDecompressor(max_window_size=_LARGEST_ZSTD_WINDOW)
            return self._unpacked(unpacker.decompressobj, zstandard.ZstdError)
        return self._stored(_BLOCK_BYTES)

    def _unpacked(self, open_frame: Callable[[], _Frame], damage: type[Exception]) -> Iterator[bytes]:
        frame = None
        for block in self._stored(_PACKED_BLOCK_BYTES):
            while block:
                frame = frame or open_frame()
                try:
                    unpacked = frame.decompress(block)
                except damage as error:
                    raise self._damaged(str(error)) from error
                block = frame.unused_data if frame.eof else b""
                frame = None if frame.eof else frame
                if unpacked:
                    yield unpacked
        if frame is not None:
            raise self._damaged("it ends too soon")

    def _stored(self, block_bytes: int) -> Iterator[bytes]:
        try:
            if self.path == STANDARD_INPUT:
                yield from self._read(sys.stdin.buffer, block_bytes)
            else:
                with self.path.open("rb") as file:
                    yield from self._read(file, block_bytes)
        except OSError as error:
            raise CorpusError(
                f"{self.label}: can't be read ({error.strerror}); check the file and its permissions"
            ) from error

    def _read(self, file: IO[bytes], block_bytes: int) -> Iterator[bytes]:
        while block := file.read(block_bytes):
            self._digest.update(block)
            self.num_bytes += len(block)
            yield block

    def _damaged(self, reason: str) -> CorpusError:
        return CorpusError(f"{self.label}: damaged archive ({reason}); copy or pack the file again")
