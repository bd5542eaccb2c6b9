"""A file of a small pickle and large read-only arrays, opened by mapping it into memory.

Layout, little-endian: magic (8 bytes), version u32, number of buffers u32, pickle length u64, SHA-256 of
table and pickle | table: offset u64, size u64 and SHA-256 of each buffer | protocol-5 pickle | buffers,
aligned to 64 bytes.

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
import secrets
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from speculant_graph.errors import GraphFileError

MAGIC = b"SPECNGRM"
MAX_BUFFERS = 256
MAX_PICKLE_BYTES = 16 << 20
MAX_OPCODES = 1_000_000

_HEADER = struct.Struct("<8sIIQ32s")
_ENTRY = struct.Struct("<QQ32s")
_ALIGNMENT = 64
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
    """The unpickled value: dicts, lists, strings, numbers, and read-only memoryviews of the mapped
    buffers."""
    digests: tuple[bytes, ...]
    """SHA-256 of each buffer as the file claims it."""
    buffers: tuple[memoryview, ...]
    """The buffers, in the same order."""


def write_container(path: Path, version: int, document: object) -> None:
    """Write a file, or leave what was there untouched.

    The bytes go to a temporary file of the same folder, which replaces ``path`` once they are on disk.

    Args:
        path: file to write.
        version: version of the document's format.
        document: dicts, lists, strings and numbers, with ``pickle.PickleBuffer`` for large arrays.

    Raises:
        GraphFileError: the file can't be written, or the document is larger than readers accept.
    """
    if path.exists() and not path.is_file():
        raise GraphFileError(f"{path} is there and is not an ordinary file; choose another path")
    out_of_band: list[pickle.PickleBuffer] = []
    pickled = pickle.dumps(document, protocol=5, buffer_callback=out_of_band.append)
    if len(pickled) > MAX_PICKLE_BYTES or sum(1 for _ in pickletools.genops(pickled)) > MAX_OPCODES:
        raise GraphFileError(
            f"the description of {path} is too large to be read again; join the corpus into fewer files"
        )
    buffers = [buffer.raw() for buffer in out_of_band]
    end = _HEADER.size + _ENTRY.size * len(buffers) + len(pickled)
    offsets = []
    for buffer in buffers:
        offsets.append(_aligned(end))
        end = offsets[-1] + buffer.nbytes
    table = b"".join(
        _ENTRY.pack(offset, buffer.nbytes, hashlib.sha256(buffer).digest())
        for offset, buffer in zip(offsets, buffers, strict=True)
    )
    checked = table + pickled
    header = _HEADER.pack(MAGIC, version, len(buffers), len(pickled), hashlib.sha256(checked).digest())
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        try:
            with temporary.open("xb") as file:
                file.write(header + checked)
                for offset, buffer in zip(offsets, buffers, strict=True):
                    file.write(bytes(offset - file.tell()))
                    file.write(buffer)
                _sync(file)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)
    except OSError as error:
        raise GraphFileError(
            f"{path} can't be written ({error.strerror}); check folder, permissions and space"
        ) from error


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
    magic, found_version, num_buffers, pickle_bytes, digest = _HEADER.unpack_from(view)
    if magic != MAGIC:
        raise _foreign(path)
    if found_version != version:
        raise GraphFileError(
            f"{path} has file format {found_version} and this release reads {version}; "
            "update speculant-graph or build the graph again"
        )
    table_end = _HEADER.size + _ENTRY.size * num_buffers
    pickle_end = table_end + pickle_bytes
    if num_buffers > MAX_BUFFERS or pickle_bytes > MAX_PICKLE_BYTES or pickle_end > len(view):
        raise damaged(path, "sizes in its header are wrong")
    if hashlib.sha256(view[_HEADER.size : pickle_end]).digest() != digest:
        raise damaged(path, "its description has another checksum")
    buffers, digests = [], []
    for offset, size, buffer_digest in _ENTRY.iter_unpack(view[_HEADER.size : table_end]):
        if offset % _ALIGNMENT or offset < pickle_end or offset + size > len(view):
            raise damaged(path, "it ends too early")
        buffers.append(view[offset : offset + size])
        digests.append(buffer_digest)
    document = _unpickled(path, bytes(view[table_end:pickle_end]), buffers)
    return Container(document, tuple(digests), tuple(buffers))


def verify_buffers(path: Path, container: Container) -> None:
    """Read all buffers and compare their digests.

    Raises:
        GraphFileError: a buffer is not what was written.
    """
    for buffer, digest in zip(container.buffers, container.digests, strict=True):
        if hashlib.sha256(buffer).digest() != digest:
            raise damaged(path, "an array has another checksum")


def damaged(path: Path, reason: str) -> GraphFileError:
    """Return the error for a file that is ours but broken."""
    return GraphFileError(f"{path} is damaged ({reason}); copy it or build the graph again")


def _foreign(path: Path) -> GraphFileError:
    return GraphFileError(f"{path} is not a graph file; build one with GraphBuilder or `speculant build`")


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGNMENT) * _ALIGNMENT


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
