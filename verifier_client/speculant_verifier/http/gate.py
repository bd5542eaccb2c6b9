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

_API = "/v1/"
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
    ) -> None:
        """Stand before an application.

        Args:
            app: what is behind.
            config: most requests at a time, and the size of their bodies.
            read_policy: who may come in now.
            read_problem: why nobody may, one line; empty if all is well.
        """
        self._app, self._config = app, config
        self._read_policy, self._read_problem = read_policy, read_problem
        self._num_running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve."""
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close"})
            return
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        request_id = request_id_of(headers)
        has_begun = False

        async def send_with_id(message: Message) -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start":
                has_begun = True
                id_header = (REQUEST_ID_KEY.encode(), request_id.encode())
                message = {**message, "headers": [*message.get("headers", ()), id_header]}
            await send(message)

        self._num_running += 1
        try:
            with bound_to_messages(request_id):
                try:
                    if scope["path"].startswith(_API):
                        self._admit(scope, dict(headers))
                        if scope["method"] == "POST":
                            receive = await self._whole_body(receive, dict(headers))
                    await self._app(scope, receive, send_with_id)
                except Exception as error:
                    refusal = error if isinstance(error, ApiError) else internal()
                    if not isinstance(error, ApiError | _ClientLeft):
                        logger.opt(exception=error).error("a request failed")
                    if not has_begun:
                        await refusal.response()(scope, receive, send_with_id)
        finally:
            self._num_running -= 1

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


class _ClientLeft(Exception):
    """Nobody waits for an answer."""


def _too_large(most: int) -> ApiError:
    return ApiError(413, f"the body may have {most} bytes; send less", code="request_too_large")
