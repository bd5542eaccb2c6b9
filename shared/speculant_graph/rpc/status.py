"""Converts this project's errors to gRPC status codes and back; no other module does so.

Clients get only error messages that this project wrote. Any unexpected error becomes INTERNAL with a neutral sentence,
so that no exception text, path or value leaks to a client.
"""

from __future__ import annotations

import re
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

from speculant_graph.errors import (
    ANSWERS,
    AccessError,
    DrafterUnavailableError,
    DraftLimitError,
    DraftRequestError,
    OverloadError,
    SpeculantError,
    TokenizerMismatchError,
    UnauthenticatedError,
    UnknownGraphError,
    UnservedRequestError,
)

STATUS_DETAILS = "grpc-status-details-bin"
"""Metadata key of the google.rpc.Status of a failed unary call."""
INTERNAL_MESSAGE = "the server failed on this request; its log says why"
"""The only text that a client gets about a server's own error."""

_REFUSALS = (
    AccessError, DraftLimitError, DraftRequestError, TokenizerMismatchError, UnauthenticatedError, UnknownGraphError,
    UnservedRequestError,
)  # fmt: skip
_ERROR_OF_STATUS: dict[grpc.StatusCode, type[SpeculantError]] = {
    grpc.StatusCode.ALREADY_EXISTS: DraftRequestError,
    grpc.StatusCode.OUT_OF_RANGE: DraftRequestError,
    **{grpc.StatusCode[ANSWERS[refusal.kind].grpc]: refusal for refusal in _REFUSALS},
}
"""The client's error class for each status code; any other code means that the drafter is unavailable."""

CODE_OF_NUMBER: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}
"""gRPC's status codes by their numbers in ``google.rpc.Code``; ``StepError.code`` is one of these numbers."""


_NO_SERVER = re.compile(r"failed to connect to all addresses.*(Connection refused|No such file or directory)")
"""Pattern of gRPC's error details if no server listens at an address. In the details, gRPC spells each address in three
ways, and adds the reason at the end."""


def to_status(error: BaseException) -> tuple[grpc.StatusCode, str]:
    """Return the status code and the message that a client may see for ``error``."""
    code = grpc.StatusCode[ANSWERS[error.kind if isinstance(error, SpeculantError) else "internal"].grpc]
    return code, INTERNAL_MESSAGE if code is grpc.StatusCode.INTERNAL else str(error)


def from_status(code: grpc.StatusCode, details: str | None, retry_delay_s: float = 0.0) -> SpeculantError:
    """Return the error for a gRPC status; its message is one line that begins with the code's name.

    Args:
        code: the status.
        details: the server's text.
        retry_delay_s: the server's retry delay in seconds; 0 if waiting does not help.
    """
    reason = " ".join((details or "no details").split())
    if found := _NO_SERVER.fullmatch(reason):
        reason = f"no server answers there ({found[1]}); start it, or correct the address"
    if code is grpc.StatusCode.UNIMPLEMENTED and reason == "Method not found!":
        reason = "another service answers there; correct the address"
    message = f"{code.name}: {reason}"
    kind = _ERROR_OF_STATUS.get(code, DrafterUnavailableError)
    return OverloadError(message, retry_delay_s) if kind is DraftLimitError and retry_delay_s else kind(message)


def error_of(call: Any) -> SpeculantError:
    """Return the error of a failed call, with the retry delay of an overloaded drafter."""
    trailing = call.trailing_metadata() or ()
    delays_s = (_retry_delay_s(value) for key, value, *_ in trailing if key == STATUS_DETAILS)
    return from_status(call.code(), call.details(), max(delays_s, default=0.0))


def _retry_delay_s(status: bytes) -> float:
    retry = RetryInfo()
    try:
        if any(detail.Unpack(retry) for detail in Status.FromString(status).details):
            return max(float(retry.retry_delay.ToNanoseconds()) * 1e-9, 0.0)
    except DecodeError:  # a proxy made it
        pass
    return 0.0


def advised_delay_s(error: BaseException) -> float | None:
    """Return the retry delay to send with an error, in seconds: 0 if waiting does not help, None for no delay."""
    if isinstance(error, OverloadError):
        return error.retry_delay_s
    return 0.0 if isinstance(error, DraftLimitError) else None
