"""Wire-identical twins of the hot messages, whose arrays are bytes.

A packed array of fixed-width numbers is, on the wire, the little-endian array itself. The public classes turn each of
its elements into a Python object; a class that declares ``repeated bytes`` under the same number hands over the memory,
at a cost that does not depend on the size. So messages are public for everybody and mirrored for us. Messages that are
parts of others become bytes as well, and are parsed when they are wanted.

A few legal encodings look different here. A packed array that was sent in several runs gives several elements, which
are joined. Elements that were not packed at all become unknown fields of the mirror: :func:`is_usual` tells, and the
caller parses the same bytes with the public class. Both ways are held against each other in tests.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet
from numpy.typing import NDArray

from speculant_graph.errors import DraftRequestError
from speculant_graph.rpc.v1 import drafter_pb2 as pb

_Field = descriptor_pb2.FieldDescriptorProto
_DTYPES: dict[int, np.dtype[Any]] = {
    _Field.TYPE_FIXED32: np.dtype("<u4"),
    _Field.TYPE_FIXED64: np.dtype("<u8"),
    _Field.TYPE_FLOAT: np.dtype("<f4"),
}
_MIRRORED = ("DraftRequest", "DraftResponse", "StreamDraftRequest", "StreamDraftResponse")
_PACKAGE = f"{pb.DESCRIPTOR.package}.mirror"


def _public_file() -> descriptor_pb2.FileDescriptorProto:
    public = descriptor_pb2.FileDescriptorProto()
    pb.DESCRIPTOR.CopyToProto(public)
    return public


def _mirrored_file() -> descriptor_pb2.FileDescriptorProto:
    mirrored = descriptor_pb2.FileDescriptorProto(
        name="speculant_graph/rpc/v1/mirror.proto", package=_PACKAGE, syntax="proto3"
    )
    for message in _public_file().message_type:
        if message.name not in _MIRRORED:
            continue
        del message.oneof_decl[:]
        for field in message.field:
            is_array = field.label == _Field.LABEL_REPEATED and field.type in _DTYPES
            if is_array or field.type == _Field.TYPE_MESSAGE:
                field.type, field.label = _Field.TYPE_BYTES, _Field.LABEL_REPEATED
                field.ClearField("type_name")
            field.ClearField("oneof_index")
        mirrored.message_type.append(message)
    return mirrored


_POOL = descriptor_pool.DescriptorPool()
_POOL.AddSerializedFile(_mirrored_file().SerializeToString())


def _class_of(name: str) -> Any:
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"{_PACKAGE}.{name}"))


DraftRequest = _class_of("DraftRequest")
"""Mirror of the message of this name, as are the others."""
DraftResponse = _class_of("DraftResponse")
StreamDraftRequest = _class_of("StreamDraftRequest")
StreamDraftResponse = _class_of("StreamDraftResponse")

_ARRAYS = {
    message.name: {
        field.number: (field.name, _DTYPES[field.type])
        for field in message.field
        if field.label == _Field.LABEL_REPEATED and field.type in _DTYPES
    }
    for message in _public_file().message_type
    if message.name in _MIRRORED
}
_ARRAY_DTYPES = {name: dtype for arrays in _ARRAYS.values() for name, dtype in arrays.values()}
_EMPTY = {name: np.zeros(0, dtype) for name, dtype in _ARRAY_DTYPES.items()}


def is_usual(message: Message) -> bool:
    """Return whether a parsed mirror of DraftRequest or DraftResponse holds all that the public class would.

    Numbers that neither knows are those of a newer peer, and ignored.
    """
    unknown: Any = UnknownFieldSet(message)
    if not len(unknown):
        return True
    arrays = _ARRAYS[message.DESCRIPTOR.name]
    return not any(field.field_number in arrays for field in unknown)


def array(message: Message, name: str) -> NDArray[Any]:
    """Return an array of a mirrored or a public message, shape ``[n]``, with the field's own dtype; not to be written.

    Raises:
        DraftRequestError: its bytes are not a whole number of elements.
    """
    value = getattr(message, name)
    size = len(value)
    if not size:
        return _EMPTY[name]
    dtype = _ARRAY_DTYPES[name]
    first = value[0]
    if type(first) is not bytes:
        return np.array(value, dtype)
    try:
        return np.frombuffer(first if size == 1 else b"".join(value), dtype)
    except ValueError:
        raise DraftRequestError(f"{name} is not a whole number of {dtype.itemsize}-byte elements") from None


def packed(name: str, values: Any) -> bytes:
    """Return numbers as bytes of the array ``name``.

    Raises:
        OverflowError: one of them is too large for the array, or negative.
    """
    if not isinstance(values, np.ndarray):
        values = np.array(values, _ARRAY_DTYPES[name])
    data: bytes = values.astype(_ARRAY_DTYPES[name], copy=False).tobytes()
    return data
