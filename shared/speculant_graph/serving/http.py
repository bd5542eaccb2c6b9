"""HTTP code that all servers share: the server, and the middleware for every request.

The server is uvicorn in an existing event loop, without uvicorn's signal handlers, logs and process management. One
ASGI middleware around the application handles the request's id, client, capacity and size. We do not use a web
framework's middleware, because it would hide a client's disconnect from the endpoint.
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
"""Media type of Prometheus metrics."""
CERTIFICATE_NAMES = "certificate_names"
"""Key in a connection's state for the names in the client's certificate; the value is None without a certificate."""
PRINCIPAL = "speculant.principal"
"""Key in a request's ASGI scope for the client that sent the request."""

_CLIENT_LEFT = 499
"""HTTP status recorded for a client that disconnects before the response; proxies log the same status."""
_MAX_DISCARDED = 16
"""A request body above the allowed size is read and discarded, up to this multiple of the allowed size. Most clients
read the response only after they have sent the whole body."""
_POLL_S = 0.02
_MAX_HEAD_BYTES, _HEAD_TIMEOUT_S = 1 << 16, 10.0
"""Size limit in bytes and time limit in seconds for a request's first line and headers, which arrive before the client
is known."""
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
        """Make a server; :meth:`start` starts it.

        Args:
            app: the application.
            address: ``host:port``; with port 0, a free port is chosen.
            option: the setting's name.
            tls: the TLS context; see :func:`speculant_graph.serving.listening.tls_context`.
        """
        self._app, self._address, self._option = app, address, option
        self._tls = tls
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> str:
        """Start listening; return the address, with the chosen port in place of port 0.

        Raises:
            ConfigError: the address is malformed or in use.
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
            log_level="critical",  # uvicorn's messages are about clients; the middleware logs our own failures
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
        """Wait until the running responses end.

        The middleware refuses new requests once its ``read_problem`` returns a problem.

        Args:
            timeout_s: longest wait in seconds.

        Returns:
            Whether all responses finished within the time.
        """
        end_s = time.monotonic() + timeout_s
        while self._server is not None and self._server.server_state.tasks:
            if time.monotonic() >= end_s:
                return False
            await asyncio.sleep(_POLL_S)
        return True

    async def close(self) -> None:
        """Stop listening, and close all connections."""
        if self._server is None or self._serving is None:
            return
        server, self._server = self._server, None
        server.should_exit = True
        await self._serving
        if tasks := list(server.server_state.tasks):
            await asyncio.wait(tasks)
        for connection in list(server.server_state.connections):
            cast(Any, connection).transport.abort()  # slow readers of earlier responses


class HttpThread:
    """A server with its own thread and event loop, so that the caller's busy event loop does not delay it."""

    def __init__(self, server: HttpServer) -> None:
        """Wrap a server that has not been started."""
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
        """Stop listening, and close all connections. A server can be closed without a start or after a failed start."""
        if self._loop is None or self._thread is None:
            return
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._server.close(), self._loop))
        self._loop.call_soon_threadsafe(self._loop.stop)
        await asyncio.to_thread(self._thread.join)
        self._loop.close()


class _Server(uvicorn.Server):
    """A server that does not handle signals."""

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        return nullcontext()


class _Protocol(HttpToolsProtocol):
    """A connection that stores its client's certificate names, and limits a request's first line and headers."""

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
    """Return the common name and the DNS names of a verified certificate; None without a certificate."""
    if not certificate:
        return None
    names = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    return (*names, *(value for kind, value in certificate.get("subjectAltName", ()) if kind == "DNS"))


@dataclass(frozen=True, slots=True)
class AccessRules:
    """Rules for requests whose paths begin with one of ``prefixes``; the middleware does not check other requests."""

    prefixes: tuple[str, ...]
    """Prefixes of the paths that only known clients may request."""
    max_requests: int
    """Maximum number of concurrent requests."""
    max_body_bytes: int
    """Maximum size of a request body, in bytes."""
    body_timeout_s: float = 60.0
    """Time limit for receiving a body, in seconds."""


class AccessMiddleware:
    """Admits requests of known clients, within the limits of :class:`AccessRules`."""

    def __init__(
        self,
        app: ASGIApp,
        rules: AccessRules,
        read_policy: Callable[[], AccessPolicy],
        refuse: Callable[[Exception], Response],
        read_problem: Callable[[], UnavailableError | None] = lambda: None,
        count_request: Callable[[str, int], None] = lambda path, status: None,
    ) -> None:
        """Wrap an application.

        Args:
            app: the application.
            rules: the rules to apply.
            read_policy: returns the current access policy.
            refuse: makes the response to an error; an error that is not a ``SpeculantError`` is an internal failure.
            read_problem: returns the reason why no client may call now; None if the server is ready.
            count_request: called with the path and status of every finished request whose path begins with one of the
                rules' prefixes.
        """
        self._app, self._rules = app, rules
        self._read_policy, self._refuse, self._read_problem = read_policy, refuse, read_problem
        self._count_request = count_request
        self._num_running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request; refuse a WebSocket."""
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
            raise OverloadError("too many requests are running", 1.0, fix="try again in a second")

    async def _whole_body(self, receive: Receive, headers: dict[str, str]) -> Receive:
        """Read the whole body, and return a ``receive`` function that replays it."""
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
            raise ApiError("late_body", "the body did not arrive in time", fix="send it again") from None
        if length > most:
            raise _too_large(most)
        is_handed_on = False

        async def replay_body() -> Message:
            nonlocal is_handed_on
            if is_handed_on:
                return await receive()
            is_handed_on = True
            return {"type": "http.request", "body": bytes(body), "more_body": False}

        return replay_body


class _ClientLeftError(Exception):
    """Error: the client has disconnected before the request was complete."""


def _too_large(most: int) -> ApiError:
    return ApiError("large_body", f"the body may have {most} bytes", fix="send less")
