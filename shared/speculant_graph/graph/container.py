"""A file of a small pickle and large read-only arrays, opened by mapping it into memory.

Layout, little-endian: magic (8 bytes), version u32, number of arrays u32, pickle length u64, SHA-256 of
table and pickle | table: offset u64, size u64 and SHA-256 of each array | protocol-5 pickle | arrays, aligned to 64
bytes, out of band of the pickle.

A pickle is a program, and this one comes from a file that anybody may have written. So sizes and digests are
checked first, then every opcode against a list that can only make plain values, and the unpickler refuses
every global.
"""

from __future__ import annotations

import hashlib
import io
import mmap
import os
import pickle
import pickletools
import struct
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from speculant_graph.errors import GraphFileError

MAGIC = b"SPECNGRM"
MAX_ARRAYS = 256
MAX_PICKLE_BYTES = 16 << 20
MAX_OPCODES = 1_000_000

_HEADER = struct.Struct("<8sIIQ32s")
_ENTRY = struct.Struct("<QQ32s")
_ALIGNMENT = 64
_SLACK = 4096
_OPCODES = frozenset(
    {
        *("PROTO", "FRAME", "STOP", "MARK", "MEMOIZE", "BINGET", "LONG_BINGET"),
        *("NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"),
        *("SHORT_BINUNICODE", "BINUNICODE", "EMPTY_DICT", "SETITEM", "SETITEMS"),
        *("EMPTY_LIST", "APPEND", "APPENDS", "NEXT_BUFFER", "READONLY_BUFFER"),
    }
)


@dataclass(frozen=True, slots=True)
class Container:
    """An opened file."""

    document: object
    """The unpickled value: dicts, lists, strings, numbers, and read-only memoryviews of the mapped arrays."""
    view: memoryview
    """The whole file, mapped read-only."""
    offsets: tuple[int, ...]
    """Where each array begins, in bytes."""
    arrays: tuple[memoryview, ...]
    """The arrays, in the same order."""
    digests: tuple[bytes, ...]
    """SHA-256 of each array as the file claims it."""


class NewContainer:
    """A file that is being written; it replaces an older one when it is complete, or leaves no trace.

    A context manager. Inside of it, arrays are written into ``file`` at ``offsets``; :meth:`finish` ends it.
    """

    def __init__(self, path: Path, folder: Path, version: int, array_bytes: Sequence[int], document_bytes: int) -> None:
        """Lay the file out and take its space on disk.

        Args:
            path: where it will be.
            folder: where it is written, on the same file system.
            version: version of the document's format.
            array_bytes: sizes of the arrays.
            document_bytes: room for the pickled document.

        Raises:
            GraphFileError: there is no such folder, no space, or something else than a file is in the place.
        """
        if path.exists() and not path.is_file():
            raise GraphFileError(f"{path} is there and is not an ordinary file; choose another path")
        self.path = path
        self.array_bytes = tuple(array_bytes)
        self._version = version
        self._document_bytes = document_bytes
        end = _HEADER.size + _ENTRY.size * len(array_bytes) + document_bytes
        offsets = []
        for size in array_bytes:
            offsets.append(_aligned(end))
            end = offsets[-1] + size
        self.offsets = tuple(offsets)
        self.num_bytes = _aligned(end)
        self._temporary = folder / "graph.new"
        with writing(path):
            self.file: BinaryIO = self._temporary.open("xb+", buffering=0)
            try:
                # Space is taken now: a full disk is an error here, but kills a process that writes through a map.
                os.posix_fallocate(self.file.fileno(), 0, self.num_bytes)
            except BaseException:
                self._discard()
                raise

    def __enter__(self) -> NewContainer:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.file.closed:
            self._discard()

    def map(self) -> mmap.mmap:
        """Map the file for reading and writing."""
        return mmap.mmap(self.file.fileno(), self.num_bytes)

    def finish(self, document: object, jobs: int = 1) -> None:
        """Add the document and the checksums, bring all to disk, and put the file in its place.

        Args:
            document: dicts, lists, strings and numbers; one empty ``pickle.PickleBuffer`` per array, in order.
            jobs: threads that compute checksums.

        Raises:
            GraphFileError: the file can't be written, or the document has no room.
        """
        pickled = _pickled(self.path, document)
        if len(pickled) > self._document_bytes:
            raise GraphFileError(f"the description of {self.path} is larger than was foreseen; report this")
        with writing(self.path):
            view = memoryview(mmap.mmap(self.file.fileno(), self.num_bytes, access=mmap.ACCESS_READ))
            spans = [view[start : start + size] for start, size in zip(self.offsets, self.array_bytes, strict=True)]
            with ThreadPoolExecutor(jobs) as threads:
                digests = list(threads.map(lambda span: hashlib.sha256(span).digest(), spans))
            table = b"".join(map(_ENTRY.pack, self.offsets, self.array_bytes, digests))
            digest = hashlib.sha256(table + pickled).digest()
            header = _HEADER.pack(MAGIC, self._version, len(digests), len(pickled), digest)
            self.file.seek(0)
            write_all(self.file, header + table + pickled)
            os.fsync(self.file.fileno())
            self.file.close()
            try:
                self._temporary.replace(self.path)
            except BaseException:
                self._temporary.unlink(missing_ok=True)
                raise
            _sync_folder(self.path.parent)

    def _discard(self) -> None:
        self.file.close()
        self._temporary.unlink(missing_ok=True)


def write_all(file: BinaryIO, data: Any) -> None:
    """Write an array or bytes to an unbuffered file; a single call of the system may write less."""
    rest = memoryview(data).cast("B")
    while rest:
        rest = rest[file.write(rest) :]


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Explain errors of the operating system while ``path`` is written.

    Raises:
        GraphFileError: an error occurred.
    """
    try:
        yield
    except OSError as error:
        raise GraphFileError(
            f"{path} can't be written ({error.strerror}); check folder, permissions and space"
        ) from error


def document_room(path: Path, document: object) -> int:
    """Return the bytes to reserve for a document whose numbers may still change.

    Raises:
        GraphFileError: the document is larger than readers accept.
    """
    return len(_pickled(path, document)) + _SLACK


def read_container(path: Path, version: int) -> Container:
    """Open a file; the buffers stay on disk until they are touched.

    Args:
        path: file to open.
        version: the version of the document that the caller reads.

    Raises:
        GraphFileError: it can't be read, is something else, is damaged or has another version.
    """
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size < _HEADER.size:
                raise _foreign(path)
            view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise GraphFileError(f"{path} can't be opened ({reason}); check the path of the graph file") from error
    magic, found_version, num_arrays, pickle_bytes, digest = _HEADER.unpack_from(view)
    if magic != MAGIC:
        raise _foreign(path)
    if found_version != version:
        raise GraphFileError(
            f"{path} has file format {found_version} and this release reads {version}; "
            "update speculant-graph or build the graph again"
        )
    table_end = _HEADER.size + _ENTRY.size * num_arrays
    pickle_end = table_end + pickle_bytes
    if num_arrays > MAX_ARRAYS or pickle_bytes > MAX_PICKLE_BYTES or pickle_end > len(view):
        raise damaged(path, "sizes in its header are wrong")
    if hashlib.sha256(view[_HEADER.size : pickle_end]).digest() != digest:
        raise damaged(path, "its description has another checksum")
    offsets, arrays, digests = [], [], []
    end = pickle_end
    for offset, size, array_digest in _ENTRY.iter_unpack(view[_HEADER.size : table_end]):
        if offset % _ALIGNMENT or offset < pickle_end or offset + size > len(view):
            raise damaged(path, "it ends too early")
        end = max(end, offset + size)
        offsets.append(offset)
        arrays.append(view[offset : offset + size])
        digests.append(array_digest)
    if arrays and len(view) != _aligned(end):
        raise damaged(path, "its length is wrong")
    document = _unpickled(path, bytes(view[table_end:pickle_end]), arrays)
    return Container(document, view, tuple(offsets), tuple(arrays), tuple(digests))


def verify_arrays(path: Path, container: Container, on_bytes: Callable[[int], None] | None = None) -> None:
    """Read all arrays and compare their checksums.

    Args:
        path: for the message.
        container: the opened file.
        on_bytes: told the bytes that were checked, after each array.

    Raises:
        GraphFileError: an array is not what was written.
    """
    num_bytes = 0
    for number, (array, digest) in enumerate(zip(container.arrays, container.digests, strict=True), start=1):
        if hashlib.sha256(array).digest() != digest:
            raise damaged(path, f"array {number} of {len(container.arrays)} has another checksum")
        num_bytes += array.nbytes
        if on_bytes is not None:
            on_bytes(num_bytes)


def damaged(path: Path, reason: str) -> GraphFileError:
    """Return the error for a file that is ours but broken."""
    return GraphFileError(f"{path} is damaged ({reason}); copy it or build the graph again")


def _foreign(path: Path) -> GraphFileError:
    return GraphFileError(f"{path} is not a graph file; build one with 'speculant build' or GraphBuilder")


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGNMENT) * _ALIGNMENT


def _sync_folder(folder: Path) -> None:
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except PermissionError:  # a folder to write into only: the file is there, its name reaches the disk in time
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _pickled(path: Path, document: object) -> bytes:
    pickled = pickle.dumps(document, protocol=5, buffer_callback=lambda _: None)
    if len(pickled) > MAX_PICKLE_BYTES or sum(1 for _ in pickletools.genops(pickled)) > MAX_OPCODES:
        raise GraphFileError(
            f"the description of {path} is too large to be read again; join the corpus into fewer files"
        )
    return pickled


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"refused {module_name}.{global_name}")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise pickle.UnpicklingError("refused a persistent id")


def _unpickled(path: Path, pickled: bytes, buffers: Sequence[memoryview]) -> object:
    try:
        for position, (opcode, _, _) in enumerate(pickletools.genops(pickled)):
            if opcode.name not in _OPCODES or position >= MAX_OPCODES:
                raise pickle.UnpicklingError(f"refused opcode {opcode.name}")
        return _PlainUnpickler(io.BytesIO(pickled), buffers=buffers).load()
    except Exception as error:  # a malformed pickle may raise anything
        raise damaged(path, f"its description is no plain data: {type(error).__name__}") from error
