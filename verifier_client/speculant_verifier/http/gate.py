"""What the API asks of requests, and what it answers to those that are not let in."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.responses import Response

from speculant_graph.errors import DrafterUnavailableError, DraftLimitError, UnauthenticatedError
from speculant_verifier.http.errors import ApiError, internal, too_busy, unavailable

API = ("/v1/", "/admin/")
"""What paths begin with that are for clients who may come in."""
_ENDPOINTS = frozenset({
    "/v1/chat/completions", "/v1/completions", "/v1/models", "/v1/responses",
    "/admin/adapters", "/admin/adapters/load", "/admin/adapters/rollback",
})  # fmt: skip


def refuse(error: Exception) -> Response:
    """Return the answer to a request that failed before or behind its endpoint."""
    return _as_told(error).response()


def _as_told(error: Exception) -> ApiError:
    match error:
        case ApiError():
            return error
        case UnauthenticatedError():
            message = "the key is missing or unknown; send 'Authorization: Bearer KEY'"
            return ApiError(401, message, code="invalid_api_key")
        case DrafterUnavailableError():
            return unavailable(str(error))
        case DraftLimitError():
            return too_busy("too many requests are being answered")
        case HTTPException():
            code = "request_too_large" if error.status_code == 413 else None
            return ApiError(error.status_code, error.detail, code=code)
    return internal()


def endpoint_of(path: str) -> str:
    """Return the endpoint under which a request is counted; "other" for paths that are none."""
    if path.startswith("/v1/models/"):
        return "/v1/models"
    return path if path in _ENDPOINTS else "other"
