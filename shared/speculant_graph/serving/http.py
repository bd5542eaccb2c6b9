"""HTTP as every server of ours has it: uvicorn in an event loop that exists, without its signals, logs and process."""

from __future__ import annotations

import asyncio
import ssl
import threading
import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from speculant_graph.rpc.addresses import require_port
from speculant_graph.serving.http_middleware import CERTIFICATE_NAMES
from speculant_graph.serving.listening import bind_tcp

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Media type of what Prometheus reads."""
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
        option: str = "--service.http",
        *,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Make a server; :meth:`start` opens it.

        Args:
            app: what is served.
            address: ``host:port``; port 0 takes a free one.
            option: of the command line, which sets the address.
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
