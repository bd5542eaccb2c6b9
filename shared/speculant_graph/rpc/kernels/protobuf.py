"""The wire format of protobuf inside of kernels: tags, varints, fields of fixed width."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from speculant_graph.graph.compiled import Integer, inlined
from speculant_graph.graph.layout import Int64Array

Bytes = NDArray[np.uint8]

VARINT, FIXED64, LENGTH = 0, 1, 2
"""Wire types of the fields that are usual."""
NO_TYPE = -1
"""In a table of wire types: a field that is not usual."""
MAX_FIELDS = 16

_INT64_POINTER = types.CPointer(types.int64)  # type: ignore[no-untyped-call]
_clock_gettime: Any = types.ExternalFunction("clock_gettime", types.int32(types.int32, _INT64_POINTER))
_CLOCK_MONOTONIC = 1


@inlined
def now_ns() -> Any:
    """Return the monotonic clock, that of :func:`time.monotonic_ns`."""
    time = np.empty(2, np.int64)
    _clock_gettime(np.int32(_CLOCK_MONOTONIC), time.ctypes)
    return time[0] * np.int64(1_000_000_000) + time[1]


@inlined
def read_varint(data: Bytes, place: Integer, end: Integer) -> Any:
    """Return (number, place behind it); the place is -1 if there is no number of at most 64 bits."""
    value, shift = np.uint64(0), np.uint64(0)
    while place < end and shift < 64:
        byte = np.uint64(data[place])
        place += 1
        value |= (byte & np.uint64(0x7F)) << shift
        if byte < 0x80:
            return np.int64(value), place
        shift += np.uint64(7)
    return np.int64(0), np.int64(-1)


@inlined
def read_fixed32(data: Bytes, place: Integer) -> Any:
    """Return four bytes as a number."""
    return (
        np.int64(data[place])
        | np.int64(data[place + 1]) << 8
        | np.int64(data[place + 2]) << 16
        | np.int64(data[place + 3]) << 24
    )


@inlined
def read_fixed64(data: Bytes, place: Integer) -> Any:
    """Return eight bytes as a signed number of the same bits."""
    return read_fixed32(data, place) | read_fixed32(data, place + 4) << 32


@inlined
def scan(data: Bytes, start: Integer, end: Integer, wire_types: Int64Array, fields: Int64Array) -> Any:
    """Find the fields of a message.

    Args:
        data: bytes that hold it.
        start: its first byte.
        end: the byte behind it.
        wire_types: wire type of every field that is usual, by number, shape ``[MAX_FIELDS]``.
        fields: output, shape ``[MAX_FIELDS, 2]``: where each one's value begins and its bytes; of a varint the value
            and 1; (0, 0) of one that is not there.

    Returns:
        Whether there is nothing but usual fields, each once at most.
    """
    for number in range(MAX_FIELDS):
        fields[number, 0] = fields[number, 1] = 0
    place = np.int64(start)
    while place < end:
        tag, place = read_varint(data, place, end)
        number = tag >> 3
        if place < 0 or not 0 < number < MAX_FIELDS or wire_types[number] != tag & 7 or fields[number, 1] != 0:
            return False
        kind = tag & 7
        if kind == VARINT:
            value, place = read_varint(data, place, end)
            if place < 0:
                return False
            fields[number, 0], fields[number, 1] = value, 1
        else:
            size = np.int64(8)
            if kind == LENGTH:
                size, place = read_varint(data, place, end)
                if place < 0:
                    return False
            if size < 0 or size > end - place:
                return False
            fields[number, 0], fields[number, 1] = place, size
            place += size
    return True


@inlined
def varint_size(value: Integer) -> Any:
    """Return the bytes of a number that is not negative."""
    size = np.int64(1)
    while value >= 0x80:
        value >>= 7
        size += 1
    return size


@inlined
def put_varint(out: Bytes, place: Integer, value: Integer) -> Any:
    """Write a number that is not negative; return the place behind it."""
    while value >= 0x80:
        out[place] = np.uint8(value & 0x7F | 0x80)
        value >>= 7
        place += 1
    out[place] = np.uint8(value)
    return place + 1


@inlined
def put_fixed32(out: Bytes, place: Integer, value: Integer) -> Any:
    """Write the low four bytes of a number; return the place behind them."""
    for shift in range(4):
        out[place + shift] = np.uint8(value >> (8 * shift) & 0xFF)
    return place + 4


@inlined
def put_fixed64(out: Bytes, place: Integer, value: Integer) -> Any:
    """Write the eight bytes of a number; return the place behind them."""
    for shift in range(8):
        out[place + shift] = np.uint8(value >> (8 * shift) & 0xFF)
    return place + 8


@inlined
def put_head(out: Bytes, place: Integer, number: Integer, size: Integer) -> Any:
    """Write tag and length of a field of bytes; return where they begin."""
    out[place] = np.uint8(number << 3 | LENGTH)
    return put_varint(out, place + 1, size)
