"""Mirror messages: the same bytes as the public classes, whatever the encoding."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from speculant_graph.errors import DraftRequestError
from speculant_graph.rpc import convert, mirror
from speculant_graph.rpc.v1 import drafter_pb2 as pb

FORMATS = {4: "<I", 8: "<Q"}
ARRAYS = {
    pb.DraftRequest: {2: 8, 3: 8, 4: 4, 5: 4, 6: 4, 8: 8, 9: 8, 10: 4, 11: 4, 13: 4},
    pb.DraftResponse: {3: 4, 4: 8, 5: 4, 6: 4, 7: 4, 8: 4, 9: 4, 10: 4, 11: 4, 13: 4, 14: 8},
}
MIRRORS = {pb.DraftRequest: mirror.DraftRequest, pb.DraftResponse: mirror.DraftResponse}


def varint(number: int) -> bytes:
    digits = bytearray()
    while number > 0x7F:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*digits, number])


def test_the_table_of_arrays_is_that_of_the_protocol() -> None:
    for public, numbers in ARRAYS.items():
        names = {field.name for field in public.DESCRIPTOR.fields if field.number in numbers}
        assert names == {name for name, _ in mirror._ARRAYS[public.DESCRIPTOR.name].values()}


@st.composite
def odd_encodings(draw: st.DrawFn, public: Any) -> bytes:
    """Runs of arrays, packed or not, in any order, among fields of every other kind."""
    pieces = []
    for number in draw(st.lists(st.sampled_from([*ARRAYS[public], 1, 7, 12, 99]), max_size=8)):
        width = ARRAYS[public].get(number)
        if width is None:
            # A number that is of another type in one of the two messages may make it no message at all.
            pieces.append(draw(st.sampled_from([varint(99 << 3) + b"\x05", varint(99 << 3 | 2) + b"\x01a"])))
            continue
        values = draw(st.lists(st.integers(0, 2**31 - 1), max_size=3))
        packed = [struct.pack(FORMATS[width], value) for value in values]
        if draw(st.booleans()):
            data = b"".join(packed)
            pieces.append(varint(number << 3 | 2) + varint(len(data)) + data)
        else:
            tag = varint(number << 3 | (5 if width == 4 else 1))
            pieces.extend(tag + value for value in packed)
    return b"".join(pieces)


@pytest.mark.parametrize("public", [pb.DraftRequest, pb.DraftResponse])
@settings(max_examples=300)
@given(data=st.data())
def test_any_legal_encoding_reads_as_the_public_class_reads_it(public: Any, data: st.DataObject) -> None:
    payload = data.draw(odd_encodings(public))
    expected = public.FromString(payload)
    message = MIRRORS[public].FromString(payload)
    if not mirror.is_usual(message):
        message = expected
    for name, _ in mirror._ARRAYS[public.DESCRIPTOR.name].values():
        np.testing.assert_array_equal(mirror.array(message, name), np.array(getattr(expected, name)))


def test_arrays_that_are_not_packed_are_seen() -> None:
    payload = varint(4 << 3 | 5) + struct.pack("<I", 1) + varint(5 << 3 | 5) + struct.pack("<I", 6)
    assert not mirror.is_usual(mirror.DraftRequest.FromString(payload))
    batch = convert.decode_step_request(payload, max_sequences=1, max_tokens=1, max_nodes=1)
    assert [context.tolist() for context in batch.contexts] == [[6]]


def test_a_newer_peer_is_understood() -> None:
    payload = pb.DraftRequest(graph="docs").SerializeToString() + varint(99 << 3) + b"\x01"
    assert mirror.is_usual(mirror.DraftRequest.FromString(payload))


@given(
    st.lists(st.integers(0, 2**32 - 1), max_size=9),
    st.lists(st.integers(0, 2**64 - 1), max_size=9),
    st.lists(st.floats(width=32, allow_nan=False), max_size=9),
)
def test_mirrors_write_the_bytes_of_the_public_class(words: Any, long_words: Any, floats: Any) -> None:
    values = {"draft_tokens": words, "next_positions": long_words, "draft_path_probabilities": floats}
    written = mirror.DraftResponse(
        draft_id=5, **{name: [mirror.packed(name, each)] for name, each in values.items() if each}
    )
    assert written.SerializeToString() == pb.DraftResponse(draft_id=5, **values).SerializeToString()


def test_half_an_element_is_refused() -> None:
    payload = varint(5 << 3 | 2) + b"\x03abc"
    with pytest.raises(DecodeError):
        pb.DraftRequest.FromString(payload)
    with pytest.raises(DraftRequestError, match="context_tokens is not a whole number"):
        convert.decode_step_request(payload, max_sequences=1, max_tokens=9, max_nodes=1)
