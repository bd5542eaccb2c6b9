"""What becomes of errors over HTTP: a status, and one line that says what to do."""

from __future__ import annotations

import json
from http import HTTPStatus

from speculant_graph.errors import (
    AccessError,
    DrafterUnavailableError,
    DraftLimitError,
    DraftRequestError,
    SpeculantError,
    UnauthenticatedError,
    UnknownGraphError,
)

JSON = "application/json"
INTERNAL_MESSAGE = "the explorer failed on this request; the sidecar's log says why"
"""All that is said of an error that is not the client's."""

_STATUS_OF_ERROR: dict[type[BaseException], HTTPStatus] = {
    DraftRequestError: HTTPStatus.BAD_REQUEST,
    UnknownGraphError: HTTPStatus.NOT_FOUND,
    DraftLimitError: HTTPStatus.TOO_MANY_REQUESTS,
    DrafterUnavailableError: HTTPStatus.SERVICE_UNAVAILABLE,
    AccessError: HTTPStatus.FORBIDDEN,
    UnauthenticatedError: HTTPStatus.UNAUTHORIZED,
}


def status_of(error: BaseException) -> tuple[HTTPStatus, str]:
    """Return the status and the line that a client may see for an error; see :mod:`speculant_graph.rpc.status`."""
    for kind in type(error).__mro__:
        if kind in _STATUS_OF_ERROR:
            return _STATUS_OF_ERROR[kind], str(error)
    return HTTPStatus.INTERNAL_SERVER_ERROR, INTERNAL_MESSAGE


def is_ours(error: BaseException) -> bool:
    """Say whether an error is one that its message explains, rather than a bug."""
    return isinstance(error, SpeculantError)


def error_body(message: str) -> bytes:
    """Return the JSON of a refusal."""
    return json.dumps({"error": message}).encode() + b"\n"
