"""A file that is a pickle, and is read without being unpickled: a text and one large block of bytes.

It holds the call of one function, byte for byte as CPython's pickler writes it for protocol 5 (or 4, which differs in
one byte), so ``pickle.load`` makes that call:

.. code-block:: text

    PROTO FRAME                   the frame ends before the block, or before a text of 64 KiB and more
    SHORT_BINUNICODE twice        module and name of the function; STACK_GLOBAL
    SHORT_BINBYTES                SHA-256 of the text
    BINUNICODE                    the text: ASCII, filled up with spaces so that the block is aligned to 64 bytes
    BINBYTES or, from 4 GiB, 8    the block, which is large enough to stand outside of a frame
    FRAME TUPLE3 REDUCE STOP      and a MEMOIZE after every value

A pickle is a program, and this one comes from a file that anyone may have written. The reader runs none of it: sizes
and checksum aside, it has the only value of every byte around text and block, and refuses a file in which one differs.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import secrets
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from speculant_graph.errors import GraphFileError

ALIGNMENT = 64
"""The block begins at a multiple of it, in bytes."""
MIN_BLOCK_BYTES = 1 << 16
"""A pickler writes smaller blocks in another form."""
MAX_TEXT_BYTES = 16 << 20

_MODULE, _FUNCTION = b"speculant_graph.graph.store", b"graph_from_pickle"
_CALL = b"\x8c%c%b\x94\x8c%c%b\x94\x93\x94" % (len(_MODULE), _MODULE, len(_FUNCTION), _FUNCTION)
_CALL_START = 11
HEAD_BYTES = _CALL_START + len(_CALL)
"""As much of a file as :func:`is_graph_head` looks at."""
_HEAD = struct.Struct(f"<cBcQ{len(_CALL)}s2s32s2sI")
_TAIL = b"\x95" + struct.pack("<Q", 6) + b"\x94\x87\x94R\x94."
_PROTOCOLS = (4, 5)
_FRAME_BYTES = 1 << 16
"""Values of this size and more stand outside of a frame."""


@dataclass(frozen=True, slots=True)
class Container:
    """An opened file."""

    text: bytes
    """The text, with the spaces at its end."""
    block: memoryview
    """The block, mapped read-only."""


class NewFile:
    """A file that is being written; it replaces an older one when it is published, or leaves no trace.

    A context manager, whose ``file`` is open for reading and writing inside of the block.
    """

    def __init__(self, path: Path, folder: Path) -> None:
        """Open a file.

        Args:
            path: where it will be.
            folder: where it is written, on the same file system.

        Raises:
            GraphFileError: there is no such folder, or something else than a file is there.
        """
        if path.exists() and not path.is_file():
            raise GraphFileError(f"{path} is there and is not an ordinary file", fix="choose another path")
        self.path = path
        self._temporary = folder / "graph.new"
        with writing(path):
            self.file: BinaryIO = self._temporary.open("xb+", buffering=0)

    def __enter__(self) -> NewFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()
        self._temporary.unlink(missing_ok=True)

    def write(self, data: Any) -> None:
        """Write all of an array or of bytes."""
        write_all(self.file, data)

    def publish(self) -> None:
        """Bring the file to disk and rename it to its path.

        Raises:
            GraphFileError: that fails.
        """
        with writing(self.path):
            os.fsync(self.file.fileno())
            self._temporary.replace(self.path)
            _sync_folder(self.path.parent)


def write_all(file: BinaryIO, data: Any) -> None:
    """Write an array or bytes to an unbuffered file; a single call of the system may write less."""
    rest = memoryview(data).cast("B")
    while rest:
        rest = rest[file.write(rest) :]


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a path to write a new file to, which replaces ``path`` at the end, or is gone after an error.

    Raises:
        GraphFileError: the file can't be written.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    with writing(path):
        try:
            yield temporary
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


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
            f"{path} can't be written ({error.strerror})", fix="check folder, permissions and space"
        ) from error


def aligned_text_bytes(text_bytes: int, block_bytes: int) -> int:
    """Return the size to which a text is filled up, so that the block behind it is aligned."""
    return text_bytes + -(_HEAD.size + text_bytes + len(_before_block(block_bytes))) % ALIGNMENT


def before_and_after(text: bytes, block_bytes: int) -> tuple[bytes, bytes]:
    """Return what stands in a file before the block, the text included, and behind it."""
    head = _head(_PROTOCOLS[-1], hashlib.sha256(text).digest(), len(text))
    return head + text + _before_block(block_bytes), _TAIL


def read_container(path: Path) -> Container:
    """Open a file; the block stays on disk until it is touched.

    Raises:
        GraphFileError: it can't be read, is something else, or is damaged.
    """
    try:
        with path.open("rb") as file:
            if not os.fstat(file.fileno()).st_size:
                raise _foreign(path)
            view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise GraphFileError(f"{path} can't be opened ({reason})", fix="check the path of the graph file") from error
    if not is_graph_head(bytes(view[:HEAD_BYTES])):
        raise _foreign(path)
    if len(view) < _HEAD.size:
        raise damaged(path, "it ends too early")
    _, protocol, _, _, _, _, checksum, _, text_bytes = _HEAD.unpack_from(view)
    text_end = _HEAD.size + text_bytes
    # Before the sizes are believed: what the file's length leaves for the block.
    block_bytes = len(view) - text_end - len(_before_block(0)) - len(_TAIL)
    if block_bytes >= 1 << 32:
        block_bytes -= 4
    if text_bytes > MAX_TEXT_BYTES or block_bytes < MIN_BLOCK_BYTES:
        raise damaged(path, "its length is wrong")
    start = text_end + len(_before_block(block_bytes))
    if (
        protocol not in _PROTOCOLS
        or view[: _HEAD.size] != _head(protocol, checksum, text_bytes)
        or view[text_end:start] != _before_block(block_bytes)
        or view[start + block_bytes :] != _TAIL
        or start % ALIGNMENT
    ):
        raise damaged(path, "its length or what stands around the arrays is wrong")
    text = bytes(view[_HEAD.size : text_end])
    if hashlib.sha256(text).digest() != checksum:
        raise damaged(path, "its description has another checksum")
    return Container(text, view[start : start + block_bytes])


def is_graph_head(head: bytes) -> bool:
    """Return whether a file that begins so was once written as a graph."""
    return head[:1] == b"\x80" and head[_CALL_START:] == _CALL


def damaged(path: Path | str, reason: str) -> GraphFileError:
    """Return the error for a file that is ours but broken."""
    return GraphFileError(f"{path} is damaged ({reason})", fix="copy it or build the graph again")


def _head(protocol: int, checksum: bytes, text_bytes: int) -> bytes:
    # The frame has the call, the checksum and its MEMOIZE, and, of a small text, opcode, size and MEMOIZE.
    framed = len(_CALL) + 35 + (text_bytes + 6 if text_bytes < _FRAME_BYTES else 0)
    return _HEAD.pack(b"\x80", protocol, b"\x95", framed, _CALL, b"C\x20", checksum, b"\x94X", text_bytes)


def _before_block(block_bytes: int) -> bytes:
    if block_bytes < 1 << 32:
        return b"\x94B" + struct.pack("<I", block_bytes)
    return b"\x94\x8e" + struct.pack("<Q", block_bytes)


def _foreign(path: Path) -> GraphFileError:
    return GraphFileError(f"{path} is not a graph file; build one with 'speculant build' or GraphBuilder")


def _sync_folder(folder: Path) -> None:
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except PermissionError:  # a folder to write into only: the file is there, its name reaches the disk in time
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
