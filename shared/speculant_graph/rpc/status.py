"""Errors of ours to gRPC status codes and back; the only such table.

Towards the wire only messages written by us travel: anything unexpected becomes INTERNAL with a neutral
sentence, so that no exception text, path or value leaks to a client.
"""

from __future__ import annotations

import re
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

from speculant_graph.errors import (
    AccessError,
    DrafterUnavailableError,
    DraftLimitError,
    DraftRequestError,
    GenerationRequestError,
    SpeculantError,
    TokenizerMismatchError,
    UnauthenticatedError,
    UnknownGraphError,
    UnservedRequestError,
)

STATUS_DETAILS = "grpc-status-details-bin"
"""Where gRPC puts the google.rpc.Status of a unary call that failed."""
INTERNAL_MESSAGE = "the server failed on this request; its log says why"
"""All that a client learns of an error that is not its own."""

STATUS_OF_ERROR: dict[type[SpeculantError], grpc.StatusCode] = {
    TokenizerMismatchError: grpc.StatusCode.FAILED_PRECONDITION,
    DraftRequestError: grpc.StatusCode.INVALID_ARGUMENT,
    UnknownGraphError: grpc.StatusCode.NOT_FOUND,
    DraftLimitError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    UnservedRequestError: grpc.StatusCode.UNIMPLEMENTED,
    DrafterUnavailableError: grpc.StatusCode.UNAVAILABLE,
    AccessError: grpc.StatusCode.PERMISSION_DENIED,
    UnauthenticatedError: grpc.StatusCode.UNAUTHENTICATED,
    GenerationRequestError: grpc.StatusCode.INVALID_ARGUMENT,
}
"""What a server answers; a subclass that is not listed takes its base's code, everything else is INTERNAL."""

ERROR_OF_STATUS: dict[grpc.StatusCode, type[SpeculantError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: DraftRequestError,
    grpc.StatusCode.NOT_FOUND: UnknownGraphError,
    grpc.StatusCode.ALREADY_EXISTS: DraftRequestError,
    grpc.StatusCode.PERMISSION_DENIED: AccessError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: DraftLimitError,
    grpc.StatusCode.FAILED_PRECONDITION: TokenizerMismatchError,
    grpc.StatusCode.OUT_OF_RANGE: DraftRequestError,
    grpc.StatusCode.UNIMPLEMENTED: UnservedRequestError,
    grpc.StatusCode.UNAUTHENTICATED: UnauthenticatedError,
}
"""What a client makes of an answer; every other code is a drafter that is not available."""

CODE_OF_NUMBER: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}
"""Codes by their numbers, which are those of ``google.rpc.Code``, as in ``StepError.code``."""


_NO_SERVER = re.compile(r"failed to connect to all addresses.*(Connection refused|No such file or directory)")
"""gRPC's details for an address without a server: each address in three spellings, and the reason at the end."""


def to_status(error: BaseException) -> tuple[grpc.StatusCode, str]:
    """Return the status code and the message that a client may see for ``error``."""
    for base in type(error).__mro__:
        if base in STATUS_OF_ERROR:
            return STATUS_OF_ERROR[base], str(error)
    return grpc.StatusCode.INTERNAL, INTERNAL_MESSAGE


def from_status(code: grpc.StatusCode, details: str | None) -> SpeculantError:
    """Return the error that a status stands for; its message is one line and begins with the code's name."""
    reason = " ".join((details or "no details").split())
    if found := _NO_SERVER.fullmatch(reason):
        reason = f"no server answers there ({found[1]})"
    if code is grpc.StatusCode.UNIMPLEMENTED and reason == "Method not found!":
        reason = "another service answers there; give the address of the one that is meant"
    return ERROR_OF_STATUS.get(code, DrafterUnavailableError)(f"{code.name}: {reason}")


def error_of(call: Any) -> SpeculantError:
    """Return the error that a failed call stands for, with the delay that a drafter over its limits sets."""
    error = from_status(call.code(), call.details())
    if isinstance(error, DraftLimitError):
        for key, value, *_ in call.trailing_metadata() or ():
            if key == STATUS_DETAILS:
                error.retry_delay_s = _retry_delay_s(value)
    return error


def _retry_delay_s(status: bytes) -> float:
    retry = RetryInfo()
    try:
        if any(detail.Unpack(retry) for detail in Status.FromString(status).details):
            return max(float(retry.retry_delay.ToNanoseconds()) * 1e-9, 0.0)
    except DecodeError:  # of a proxy's making
        pass
    return 0.0
