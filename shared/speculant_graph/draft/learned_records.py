"""The format of what was learned: a header that says whose it is, then records that each stand for themselves.

Layout, little-endian: magic (8 bytes), version u32, bytes of the label u32, CRC-32 of these two numbers and the label
| label: JSON list in UTF-8 | content. The header stays as it is in all versions.

A log's content is records: marker (4 bytes), number of tokens u32, CRC-32 of number and tokens | tokens u32. The
marker has no zero byte and every four bytes of token ids below 2^24 have one, so a search for it finds the next record
behind any damage and never a place inside of a document. CRCs start from a number made of the label's name and
tokenizer: a record is believed only in the file that it was written for.

A state's content is the CRC-32 of its bytes, and the bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from speculant_graph.errors import ConfigError

FileKind = Literal["log", "rows", "state"]
"""A tenant's documents, its rows of the target, or a small table that belongs to nobody; files end in it."""

MAGIC = b"SPECLRND"
VERSION = 1
TOKEN_ID_LIMIT = 1 << 24
"""Ids are below it; larger ones could be taken for a marker."""

_PREFIX = struct.Struct("<8sIII")
_NUMBERS = struct.Struct("<II")
_RECORD = struct.Struct("<4sII")
_CHECKSUM = struct.Struct("<I")
_MARKER = b"\xf5DOC"
_ID_BYTES = 4


@dataclass(frozen=True, slots=True)
class Label:
    """Whose file it is."""

    kind: FileKind
    """What is in it."""
    name: str
    """Tenant of a log and of rows, name of a state; any text."""
    tokenizer_name: str
    """For messages to people."""
    sha256: str
    """Digest of the tokenizer."""

    @property
    def file_name(self) -> str:
        """A name that every file system takes, whatever the label's is."""
        return f"{hashlib.sha256(_encoded(self.name)).hexdigest()}.{self.kind}"

    @property
    def salt(self) -> int:
        """What the CRCs of the content start from."""
        return zlib.crc32(_encoded(json.dumps([self.kind, self.name, self.sha256], ensure_ascii=False)))

    def header(self) -> bytes:
        """Return the beginning of its file."""
        fields = [self.kind, self.name, self.tokenizer_name, self.sha256]
        packed = _encoded(json.dumps(fields, ensure_ascii=False))
        return _PREFIX.pack(MAGIC, VERSION, len(packed), _header_checksum(VERSION, packed)) + packed

    def is_alike(self, other: Label) -> bool:
        """Return whether a file of ``other`` is one of this; a tokenizer may be known by several names."""
        return (self.kind, self.name, self.sha256) == (other.kind, other.name, other.sha256)


@dataclass(frozen=True, slots=True)
class LogContent:
    """What is found in a log."""

    documents: list[NDArray[np.uint32]]
    """The newest, oldest first; the first one may be cut at its front."""
    num_tokens: int
    """Tokens of all whole records."""
    damaged_bytes: int
    """Bytes that are neither header nor whole record."""


def read_label(file: BinaryIO, path: Path) -> tuple[Label, int] | None:
    """Read the header; return the label and where the content begins, or None if there is no whole header.

    Raises:
        ConfigError: the file is of another version.
        OSError: it can't be read.
    """
    prefix = file.read(_PREFIX.size)
    if len(prefix) < _PREFIX.size:
        return None
    magic, version, num_bytes, checksum = _PREFIX.unpack(prefix)
    if magic != MAGIC or num_bytes > os.fstat(file.fileno()).st_size:
        return None
    packed = file.read(num_bytes)
    if _header_checksum(version, packed) != checksum:
        return None
    if version != VERSION:
        raise ConfigError(
            f"{path} has format {version} of learned text and this release reads {VERSION}; "
            "update speculant-graph or name another folder"
        )
    label = Label(*json.loads(packed.decode("utf-8", "surrogatepass")))
    return label, len(prefix) + num_bytes


def packed_record(token_ids: NDArray[np.uint32], salt: int) -> bytes:
    """Return one document as it stands in a log.

    Args:
        token_ids: shape ``[n]``, ids below :data:`TOKEN_ID_LIMIT`.
        salt: that of the log's label.
    """
    payload = token_ids.astype("<u4", copy=False).tobytes()
    return _RECORD.pack(_MARKER, token_ids.size, _record_checksum(token_ids.size, payload, salt)) + payload


def read_log(file: BinaryIO, path: Path, label: Label, num_bytes: int, max_tokens: int) -> LogContent:
    """Read a log, passing over what is damaged.

    Args:
        file: the log, from its beginning.
        path: its path, for messages.
        label: whose log it must be. Where the header is not of it or is damaged, records are searched all the same.
        num_bytes: where to stop.
        max_tokens: most tokens to return; those of older documents are left out.

    Raises:
        ConfigError: the file is of another version.
        OSError: it can't be read.
    """
    found = read_label(file, path)
    begin = found[1] if found is not None and found[0].is_alike(label) else 0
    file.seek(0)
    data = file.read(num_bytes)
    records = list(_records(data, begin, label.salt))
    documents = []
    room = max_tokens
    for offset, count in reversed(records):
        kept = min(count, room)
        if not kept:
            break
        begin_kept = offset + _ID_BYTES * (count - kept)
        documents.append(np.frombuffer(data, "<u4", kept, begin_kept).astype(np.uint32))
        room -= kept
    num_tokens = sum(count for _, count in records)
    damaged_bytes = len(data) - begin - _RECORD.size * len(records) - _ID_BYTES * num_tokens
    return LogContent(documents[::-1], num_tokens, damaged_bytes)


def packed_state(blob: bytes, label: Label) -> bytes:
    """Return the file of a state."""
    return label.header() + _CHECKSUM.pack(zlib.crc32(blob, label.salt)) + blob


def read_state(file: BinaryIO, path: Path, label: Label) -> bytes | None:
    """Read a state; return None if it is damaged or not that of ``label``.

    Raises:
        ConfigError: the file is of another version.
        OSError: it can't be read.
    """
    found = read_label(file, path)
    checksum, blob = file.read(_CHECKSUM.size), file.read()
    if found is None or not found[0].is_alike(label):
        return None
    return blob if checksum == _CHECKSUM.pack(zlib.crc32(blob, label.salt)) else None


def _records(data: bytes, begin: int, salt: int) -> Iterator[tuple[int, int]]:
    """Stream where the tokens of each whole record begin, and how many they are."""
    view = memoryview(data)
    position = data.find(_MARKER, begin)
    while position >= 0:
        offset = position + _RECORD.size
        following = position + 1
        if offset <= len(data):
            _, count, checksum = _RECORD.unpack_from(data, position)
            end = offset + _ID_BYTES * count
            if end <= len(data) and _record_checksum(count, view[offset:end], salt) == checksum:
                yield offset, count
                following = end
        position = data.find(_MARKER, following)


def _record_checksum(count: int, payload: bytes | memoryview, salt: int) -> int:
    return zlib.crc32(payload, zlib.crc32(_CHECKSUM.pack(count), salt))


def _header_checksum(version: int, packed: bytes) -> int:
    return zlib.crc32(packed, zlib.crc32(_NUMBERS.pack(version, len(packed))))


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
