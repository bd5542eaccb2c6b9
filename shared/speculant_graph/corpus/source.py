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
# Packed bytes are unpacked a few at a time, so that no archive, however dense, fills the memory: one of gzip holds at
# most 1,032 bytes, and four of zstd hold 128 KiB, so each step gives 4 MiB and a little. zstandard's readers bound
# what they return, but do not distinguish an archive that is cut off from one that is whole.
_GZIP_STEP_BYTES = 1 << 12
_ZSTD_STEP_BYTES = 1 << 7
_GZIP_WINDOW_BITS = 31
# What zstd itself unpacks unasked; the window is held in memory.
_LARGEST_ZSTD_WINDOW = 1 << 27


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
        """Stream the file's unpacked bytes in non-empty blocks of a few megabytes at most.

        Raises:
            CorpusError: the file can't be read, or its archive is damaged, ends too soon or needs too much memory.
            ModuleNotFoundError: it is packed by zstd and the extra ``build`` is not installed.
        """
        if self._packing == ".gz":
            return self._unpacked(
                lambda: zlib.decompressobj(_GZIP_WINDOW_BITS), zlib.error, step_bytes=_GZIP_STEP_BYTES, padding=b"\0"
            )
        if self._packing == ".zst":
            with needed_for(f"unpacking {self.label}", "build"):
                import zstandard
            unpacker = zstandard.ZstdDecompressor(max_window_size=_LARGEST_ZSTD_WINDOW)
            return self._unpacked(unpacker.decompressobj, zstandard.ZstdError, step_bytes=_ZSTD_STEP_BYTES, padding=b"")
        return self._stored()

    def _unpacked(
        self, open_frame: Callable[[], _Frame], damage: type[Exception], *, step_bytes: int, padding: bytes
    ) -> Iterator[bytes]:
        frame, ignored = None, b""
        for packed in self._in_steps(step_bytes):
            while packed := packed if frame else packed.lstrip(ignored):
                frame = frame or open_frame()
                try:
                    unpacked = frame.decompress(packed)
                except damage as error:
                    raise self._not_unpacked(str(error)) from error
                packed = b""
                if frame.eof:
                    packed, frame, ignored = frame.unused_data, None, padding
                if unpacked:
                    yield unpacked
        if frame is not None:
            raise self._not_unpacked("it ends too soon")

    def _in_steps(self, step_bytes: int) -> Iterator[bytes]:
        for block in self._stored():
            for start in range(0, len(block), step_bytes):
                yield block[start : start + step_bytes]

    def _stored(self) -> Iterator[bytes]:
        try:
            if self.path == STANDARD_INPUT:
                yield from self._read(sys.stdin.buffer)
            else:
                with self.path.open("rb") as file:
                    yield from self._read(file)
        except OSError as error:
            raise CorpusError(
                f"{self.label}: can't be read ({error.strerror}); check the file and its permissions"
            ) from error

    def _read(self, file: IO[bytes]) -> Iterator[bytes]:
        while block := file.read(_BLOCK_BYTES):
            self._digest.update(block)
            self.num_bytes += len(block)
            yield block

    def _not_unpacked(self, reason: str) -> CorpusError:
        if "too much memory" in reason:  # zstandard has one exception for all that is wrong
            return CorpusError(
                f"{self.label}: needs a window of more than {_LARGEST_ZSTD_WINDOW >> 20} MiB to be unpacked; "
                "pack the file again without --long or with --long=27"
            )
        return CorpusError(f"{self.label}: damaged archive ({reason}); copy or pack the file again")
