"""What every HTTP request goes through first: its id, its client, whether there is capacity, how large it is.

A middleware of ASGI and nothing else, as those of frameworks stand between an endpoint and the news that its client has
left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from loguru import logger
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from speculant_graph.errors import DrafterUnavailableError, DraftLimitError, UnauthenticatedError
from speculant_graph.serving.access import REQUEST_ID_KEY, AccessPolicy, request_id_of

CERTIFICATE_NAMES = "certificate_names"
"""Where a connection's state has the names of the client's certificate; None where it showed none."""
PRINCIPAL = "speculant.principal"
"""Where a request's scope has its client."""

_CLIENT_LEFT = 499
"""What proxies write into their logs where a client left before there was a status."""
_MAX_DISCARDED = 16
"""So many times the allowed size of a body is read and thrown away, as most clients listen only when all is sent."""


@dataclass(frozen=True, slots=True)
class AccessRules:
    """What the middleware requires of requests; those to paths without a prefix of these pass."""

    prefixes: tuple[str, ...]
    """What paths begin with that are for known clients."""
    max_requests: int
    """Most requests at a time."""
    max_body_bytes: int
    """Longest body."""
    body_timeout_s: float = 60.0
    """Longest that a body may take to arrive."""


class AccessMiddleware:
    """Admits requests."""

    def __init__(
        self,
        app: ASGIApp,
        rules: AccessRules,
        read_policy: Callable[[], AccessPolicy],
        refuse: Callable[[Exception], Response],
        read_problem: Callable[[], str] = str,
        count_request: Callable[[str, int], None] = lambda path, status: None,
    ) -> None:
        """Stand before an application.

        Args:
            app: what is behind.
            rules: what is required of requests.
            read_policy: returns which clients may call now.
            refuse: the answer to a ``SpeculantError``, an ``HTTPException``, or any other failure of ours.
            read_problem: returns why no client may call, one line; empty if all is well.
            count_request: called for every request with a prefix that is over: its path and the status.
        """
        self._app, self._rules = app, rules
        self._read_policy, self._refuse, self._read_problem = read_policy, refuse, read_problem
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
        is_guarded = scope["path"].startswith(self._rules.prefixes)
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = status or message["status"]
                id_header = (REQUEST_ID_KEY.encode(), request_id.encode())
                message = {**message, "headers": [*message.get("headers", ()), id_header]}
            await send(message)

        self._num_running += is_guarded
        try:
            with logger.contextualize(request_id=request_id):
                try:
                    if is_guarded:
                        self._admit(scope, dict(headers))
                        if scope["method"] == "POST":
                            receive = await self._whole_body(receive, dict(headers))
                    await self._app(scope, receive, send_with_id)
                except _ClientLeftError:
                    status = status or _CLIENT_LEFT
                except Exception as error:
                    answer = self._refuse(error)
                    if answer.status_code == 500:
                        logger.opt(exception=error).error("a request failed")
                    if not status:
                        await answer(scope, receive, send_with_id)
        finally:
            self._num_running -= is_guarded
            if is_guarded:
                self._count_request(scope["path"], status or _CLIENT_LEFT)

    def _admit(self, scope: Scope, headers: dict[str, str]) -> None:
        names = scope.get("state", {}).get(CERTIFICATE_NAMES)
        try:
            scope[PRINCIPAL] = self._read_policy().authenticate(headers.get("authorization"), names or ())
        except UnauthenticatedError as error:
            logger.debug("refused: {}", error)
            raise
        if problem := self._read_problem():
            raise DrafterUnavailableError(problem)
        if self._num_running > self._rules.max_requests:
            raise DraftLimitError("too many requests are being answered; try again in a second", 1.0)

    async def _whole_body(self, receive: Receive, headers: dict[str, str]) -> Receive:
        """Read the body, and return what hands it on."""
        most = self._rules.max_body_bytes
        declared = headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > most * _MAX_DISCARDED:
            raise _too_large(most)
        body = bytearray()
        length = 0
        try:
            async with asyncio.timeout(self._rules.body_timeout_s):
                more = True
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _ClientLeftError
                    piece = message.get("body", b"")
                    length += len(piece)
                    if length <= most:
                        body += piece
                    elif length > most * _MAX_DISCARDED:
                        break
                    more = message.get("more_body", False)
        except TimeoutError:
            raise HTTPException(408, "the body did not come in time; send it again") from None
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


class _ClientLeftError(Exception):
    """No client waits for an answer."""


def _too_large(most: int) -> HTTPException:
    return HTTPException(413, f"the body may have {most} bytes; send less")
