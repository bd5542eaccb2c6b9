"""HTTP beside gRPC: /metrics for Prometheus, /healthz for probes of other protocols, and the explorer."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from speculant_drafter.explorer_endpoints import SECURITY, Explorer, json_response
from speculant_graph.errors import (
    AccessError,
    DrafterUnavailableError,
    DraftLimitError,
    DraftRequestError,
    SpeculantError,
    UnauthenticatedError,
    UnknownGraphError,
)
from speculant_graph.serving.access import AccessPolicy
from speculant_graph.serving.http import METRICS_TYPE
from speculant_graph.serving.http_middleware import AccessMiddleware, AccessRules

_STATUS_OF_ERROR: dict[type[BaseException], int] = {
    DraftRequestError: 400,
    UnknownGraphError: 404,
    DraftLimitError: 429,
    DrafterUnavailableError: 503,
    AccessError: 403,
    UnauthenticatedError: 401,
}
_PATHS = "/metrics, /healthz, /explorer/ and /explorer/api/v1/graphs"
_NO_STORE = {"Cache-Control": "no-store"}


def create_app(
    explorer: Explorer,
    rules: AccessRules,
    read_policy: Callable[[], AccessPolicy],
    render_metrics: Callable[[], bytes],
    read_problem: Callable[[], str],
) -> ASGIApp:
    """Return what a sidecar answers over HTTP as an ASGI application.

    Args:
        explorer: answers below ``/explorer``.
        rules: what requests for its data must satisfy.
        read_policy: returns which clients may call, at present.
        render_metrics: text for Prometheus.
        read_problem: why nothing is served, one line; empty if it is.
    """

    def index(request: Request) -> Response:
        return PlainTextResponse(f"speculant drafter: {_PATHS}\n", headers=_NO_STORE)

    async def metrics(request: Request) -> Response:
        return Response(render_metrics(), media_type=METRICS_TYPE, headers=_NO_STORE)

    async def health(request: Request) -> Response:
        problem = read_problem()
        return PlainTextResponse(f"{problem or 'ok'}\n", 503 if problem else 200, _NO_STORE)

    async def refuse_request(request: Request, error: Exception) -> Response:
        return refuse(error)

    handlers: Any = dict.fromkeys((SpeculantError, HTTPException, Exception), refuse_request)
    app = Starlette(
        routes=[Route("/", index), Route("/metrics", metrics), Route("/healthz", health), *explorer.routes()],
        exception_handlers=handlers,
    )
    app.router.redirect_slashes = False
    return AccessMiddleware(app, rules, read_policy, refuse)


def refuse(error: Exception) -> Response:
    """Return the answer to a request that failed: a status, and one line that ends in what to do."""
    headers = dict(SECURITY)
    if isinstance(error, HTTPException):
        status, message = error.status_code, error.detail
        headers |= error.headers or {}
        if message == HTTPStatus(status).phrase:  # the framework's
            use = headers.get("Allow", "GET").replace(", ", " or ")
            message = f"use {use} here" if status == 405 else f"there is nothing at this path; there are {_PATHS}"
    else:
        known = next((each for each in type(error).__mro__ if each in _STATUS_OF_ERROR), None)
        status = 500 if known is None else _STATUS_OF_ERROR[known]
        message = str(error) if known else "the sidecar failed on this request; its log says why"
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, DraftLimitError) and error.retry_delay_s:
        headers["Retry-After"] = f"{error.retry_delay_s:.0f}"
    return json_response({"error": message}, status, headers)
