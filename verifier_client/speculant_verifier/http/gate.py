"""What every request goes through before the application sees it: its id, who sends it, is there room, how large is it.

A middleware of ASGI and nothing else, as those of frameworks stand between an endpoint and the news that its client has
left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from loguru import logger
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from speculant_graph.config import ServiceConfig
from speculant_graph.errors import UnauthenticatedError
from speculant_graph.serving.access import AccessPolicy
from speculant_graph.serving.request_ids import REQUEST_ID_KEY, bound_to_messages, request_id_of
from speculant_verifier.http.errors import INVALID, ApiError, internal, too_busy, unavailable

CERTIFICATE_NAMES = "certificate_names"
"""Where a connection's state has the names of the client's certificate."""
PRINCIPAL = "speculant.principal"
"""Where a request's scope has who sends it."""

CountRequest = Callable[[str, int], None]
"""Told of every request that is over: the endpoint and the status that was answered."""

API = ("/v1/", "/admin/")
"""What paths begin with that are for clients who may come in."""
_ENDPOINTS = frozenset({
    "/v1/chat/completions", "/v1/completions", "/v1/models", "/v1/responses",
    "/admin/adapters", "/admin/adapters/load", "/admin/adapters/rollback",
})  # fmt: skip
_CLIENT_LEFT = 499
"""What proxies write into their logs where a client left before there was a status."""
_BODY_TIMEOUT_S = 60.0
_MOST_DISCARDED = 16
"""So many times the allowed size of a body is read and thrown away, as most clients listen only when all is sent."""


class Gate:
    """Lets requests in."""

    def __init__(
        self,
        app: ASGIApp,
        config: ServiceConfig,
        read_policy: Callable[[], AccessPolicy],
        read_problem: Callable[[], str],
        count_request: CountRequest = lambda endpoint, status: None,
    ) -> None:
        """Stand before an application.

        Args:
            app: what is behind.
            config: most requests at a time, and the size of their bodies.
            read_policy: who may come in now.
            read_problem: why nobody may, one line; empty if all is well.
            count_request: told of every request to the API that is over. Paths that are no endpoint are "other".
        """
        self._app, self._config = app, config
        self._read_policy, self._read_problem = read_policy, read_problem
        self._count_request = count_request
        self._num_running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve."""
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close"})
            return
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        request_id = request_id_of(headers)
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = status or message["status"]
                id_header = (REQUEST_ID_KEY.encode(), request_id.encode())
                message = {**message, "headers": [*message.get("headers", ()), id_header]}
            await send(message)

        self._num_running += 1
        try:
            with bound_to_messages(request_id):
                try:
                    if scope["path"].startswith(API):
                        self._admit(scope, dict(headers))
                        if scope["method"] == "POST":
                            receive = await self._whole_body(receive, dict(headers))
                    await self._app(scope, receive, send_with_id)
                except Exception as error:
                    refusal = error if isinstance(error, ApiError) else internal()
                    if isinstance(error, _ClientLeft):
                        status = status or _CLIENT_LEFT
                    elif not isinstance(error, ApiError):
                        logger.opt(exception=error).error("a request failed")
                    if not status:
                        await refusal.response()(scope, receive, send_with_id)
        finally:
            self._num_running -= 1
            if scope["path"].startswith(API):
                self._count_request(_endpoint_of(scope["path"]), status or _CLIENT_LEFT)

    def _admit(self, scope: Scope, headers: dict[str, str]) -> None:
        names = scope.get("state", {}).get(CERTIFICATE_NAMES, ())
        try:
            scope[PRINCIPAL] = self._read_policy().authenticate(headers.get("authorization"), names)
        except UnauthenticatedError as error:
            logger.debug("refused: {}", error)
            raise ApiError(
                401, "the key is missing or unknown; send 'Authorization: Bearer KEY'", code="invalid_api_key"
            ) from error
        if problem := self._read_problem():
            raise unavailable(problem)
        if self._num_running > self._config.max_concurrent_rpcs:
            raise too_busy("too many requests are being answered")

    async def _whole_body(self, receive: Receive, headers: dict[str, str]) -> Receive:
        """Read the body, and return what hands it on."""
        most = self._config.max_message_bytes
        declared = headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > most * _MOST_DISCARDED:
            raise _too_large(most)
        body = bytearray()
        length = 0
        try:
            async with asyncio.timeout(_BODY_TIMEOUT_S):
                more = True
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _ClientLeft
                    piece = message.get("body", b"")
                    length += len(piece)
                    if length <= most:
                        body += piece
                    elif length > most * _MOST_DISCARDED:
                        break
                    more = message.get("more_body", False)
        except TimeoutError:
            raise ApiError(408, "the body did not come in time; send it again", kind=INVALID) from None
        if length > most:
            raise _too_large(most)
        is_handed_on = False

        async def hand_on() -> Message:
            nonlocal is_handed_on
            if is_handed_on:
                return await receive()
            is_handed_on = True
            return {"type": "http.request", "body": bytes(body), "more_body": False}

        return hand_on


def _endpoint_of(path: str) -> str:
    if path.startswith("/v1/models/"):
        return "/v1/models"
    return path if path in _ENDPOINTS else "other"


class _ClientLeft(Exception):
    """Nobody waits for an answer."""


def _too_large(most: int) -> ApiError:
    return ApiError(413, f"the body may have {most} bytes; send less", code="request_too_large")
