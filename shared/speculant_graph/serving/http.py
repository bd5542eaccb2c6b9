"""HTTP as every server of ours has it, and what every request goes through first.

The server is uvicorn in an event loop that exists, without its signals, logs and process. Before the application stands
a middleware of ASGI and nothing else, as those of frameworks stand between an endpoint and the news that its client has
left: it sees to the request's id, its client, whether there is capacity, and how large it is.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, cast

import uvicorn
from loguru import logger
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from speculant_graph.errors import ApiError, OverloadError, UnauthenticatedError, UnavailableError
from speculant_graph.rpc.addresses import require_port
from speculant_graph.serving.access import REQUEST_ID_KEY, AccessPolicy, request_id_of
from speculant_graph.serving.listening import bind_tcp

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Media type of what Prometheus reads."""
CERTIFICATE_NAMES = "certificate_names"
"""Where a connection's state has the names of the client's certificate; None where it showed none."""
PRINCIPAL = "speculant.principal"
"""Where a request's scope has its client."""

_CLIENT_LEFT = 499
"""What proxies write into their logs where a client left before there was a status."""
_MAX_DISCARDED = 16
"""So many times the allowed size of a body is read and thrown away, as most clients listen only when all is sent."""
_POLL_S = 0.02
_MAX_HEAD_BYTES, _HEAD_TIMEOUT_S = 1 << 16, 10.0
"""Bounds of a request's first line and headers, which come before the client is known."""
_KEEP_ALIVE_S = 30


class HttpServer:
    """Serves an application at one address."""

    def __init__(
        self,
        app: ASGIApp,
        address: str,
        option: str = "service.http",
        *,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Make a server; :meth:`start` opens it.

        Args:
            app: what is served.
            address: ``host:port``; port 0 takes a free one.
            option: the setting's name.
            tls: what encrypts; see :func:`speculant_graph.serving.listening.tls_context`.
        """
        self._app, self._address, self._option = app, address, option
        self._tls = tls
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> str:
        """Listen; return the address with the port that was given for port 0.

        Raises:
            ConfigError: the address is malformed or taken.
        """
        require_port(self._address, self._option)
        listening = bind_tcp(self._address, self._option)
        config = uvicorn.Config(
            self._app,
            interface="asgi3",
            http=_Protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",  # its messages are about clients; our own failures are logged by the middleware
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=0,  # drain() has waited
        )
        config.load()
        config.ssl = self._tls
        self._server = server = _Server(config)
        self._serving = asyncio.create_task(server.serve(sockets=[listening]))
        while not server.started and not self._serving.done():
            await asyncio.sleep(_POLL_S)
        if self._serving.done():
            await self._serving
        return f"{self._address.rpartition(':')[0]}:{listening.getsockname()[1]}"

    async def drain(self, timeout_s: float) -> bool:
        """Wait for the answers that are being given. The application refuses others, if it has a problem to report.

        Args:
            timeout_s: longest wait.

        Returns:
            Whether all were given.
        """
        end_s = time.monotonic() + timeout_s
        while self._server is not None and self._server.server_state.tasks:
            if time.monotonic() >= end_s:
                return False
            await asyncio.sleep(_POLL_S)
        return True

    async def close(self) -> None:
        """Stop listening, and cut off what is still connected."""
        if self._server is None or self._serving is None:
            return
        server, self._server = self._server, None
        server.should_exit = True
        await self._serving
        if tasks := list(server.server_state.tasks):
            await asyncio.wait(tasks)
        for connection in list(server.server_state.connections):
            cast(Any, connection).transport.abort()  # slow readers of what was sent before


class HttpThread:
    """A server with a thread and an event loop of its own, whatever the caller's event loop is busy with."""

    def __init__(self, server: HttpServer) -> None:
        """Take a server that was not started."""
        self._server = server
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    async def start(self) -> str:
        """Listen; see :meth:`HttpServer.start`."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="http", daemon=True)
        self._thread.start()
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._server.start(), self._loop))

    async def close(self) -> None:
        """Stop listening, and cut off what is connected; also after a start that failed, or none."""
        if self._loop is None or self._thread is None:
            return
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._server.close(), self._loop))
        self._loop.call_soon_threadsafe(self._loop.stop)
        await asyncio.to_thread(self._thread.join)
        self._loop.close()


class _Server(uvicorn.Server):
    """One that leaves signals alone."""

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        return nullcontext()


class _Protocol(HttpToolsProtocol):
    """A connection: it names its client's certificate to the application, and its requests begin in bounds."""

    _head_timer: asyncio.TimerHandle | None = None
    _num_head_bytes = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        encryption = transport.get_extra_info("ssl_object")
        if encryption is not None:
            self.app_state = {**self.app_state, CERTIFICATE_NAMES: _names_in(encryption.getpeercert())}
        self._begin_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_head()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        self._begin_head()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._end_head()
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._num_head_bytes += len(data)
        if self._head_timer is not None and self._num_head_bytes > _MAX_HEAD_BYTES:
            self._end_head()
            self.send_400_response("The head of the request is too large.")

    def _begin_head(self) -> None:
        if self._head_timer is None:
            self._num_head_bytes = 0
            self._head_timer = self.loop.call_later(_HEAD_TIMEOUT_S, self.transport.abort)

    def _end_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


def _names_in(certificate: dict[str, Any] | None) -> tuple[str, ...] | None:
    """Return the common name and the DNS names of a verified certificate; None where the client showed none."""
    if not certificate:
        return None
    names = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    return (*names, *(value for kind, value in certificate.get("subjectAltName", ()) if kind == "DNS"))


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
        read_problem: Callable[[], UnavailableError | None] = lambda: None,
        count_request: Callable[[str, int], None] = lambda path, status: None,
    ) -> None:
        """Stand before an application.

        Args:
            app: what is behind.
            rules: what is required of requests.
            read_policy: returns which clients may call now.
            refuse: the answer to a ``SpeculantError``, or to any other failure of ours.
            read_problem: returns why no client may call; None if all is well.
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
        request_id = scope[REQUEST_ID_KEY] = request_id_of(headers)
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
            raise problem
        if self._num_running > self._rules.max_requests:
            raise OverloadError("too many requests are being answered", 1.0, fix="try again in a second")

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
            raise ApiError("late_body", "the body did not come in time", fix="send it again") from None
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


def _too_large(most: int) -> ApiError:
    return ApiError("large_body", f"the body may have {most} bytes", fix="send less")
