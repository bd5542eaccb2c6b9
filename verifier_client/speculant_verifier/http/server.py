"""An HTTP server in somebody else's event loop: uvicorn without its signals, its logs and its process."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from speculant_graph.errors import ConfigError
from speculant_graph.rpc.addresses import require_port
from speculant_graph.serving.bind_failure import bind_failure
from speculant_verifier.http.gate import CERTIFICATE_NAMES

_POLL_S = 0.02
_MOST_HEAD_BYTES = 1 << 16
"""Of a request\'s first line and headers, which come before anybody knows who sends them."""
_KEEP_ALIVE_S = 30
_BACKLOG = 1_024


class HttpServer:
    """Serves an application at one address."""

    def __init__(
        self,
        app: ASGIApp,
        address: str,
        *,
        tls_certificate: Path | None = None,
        tls_key: Path | None = None,
        tls_client_ca: Path | None = None,
    ) -> None:
        """Make a server; :meth:`start` opens it.

        Args:
            app: what is served.
            address: ``host:port``; port 0 takes a free one.
            tls_certificate: certificate chain (PEM); without it nothing is encrypted.
            tls_key: its private key.
            tls_client_ca: authorities that clients' certificates must be of.
        """
        self._app, self._address = app, address
        self._tls = (tls_certificate, tls_key, tls_client_ca)
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> str:
        """Listen; return the address with the port that was given for port 0.

        Raises:
            ConfigError: the address is malformed or taken, or the certificate can't be used.
        """
        require_port(self._address, "--service.http")
        host, _, port = self._address.rpartition(":")
        context = _tls_context(*self._tls)
        config = uvicorn.Config(
            self._app,
            host=host.strip("[]"),
            port=int(port),
            interface="asgi3",
            http=_Protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",  # what it has to say is about clients; our own failures are logged by the gate
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=_BACKLOG,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=0,  # drain() has waited
        )
        config.load()
        config.ssl = context
        server = _Server(config)
        self._serving = asyncio.create_task(server.serve())
        while not server.started and not self._serving.done():
            await asyncio.sleep(_POLL_S)
        if self._serving.done():
            try:
                await self._serving
            except OSError as error:
                raise bind_failure(self._address, "--service.http") from error
        self._server = server
        return f"{host}:{server.servers[0].sockets[0].getsockname()[1]}"

    async def drain(self, timeout_s: float) -> bool:
        """Wait for the answers that are being given. The application refuses others, if it was told of a problem.

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
            cast(Any, connection).transport.abort()  # slow readers of what was said before


class _Server(uvicorn.Server):
    """One that leaves signals and the process alone."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: Any = None) -> None:
        try:
            await super().startup(sockets)
        except SystemExit as error:  # its way to say that the address is taken
            raise OSError("the address can't be bound") from error


class _Protocol(AutoHTTPProtocol):  # type: ignore[valid-type, misc]
    """A connection that tells the application the names in its client's certificate, and bounds heads of requests."""

    app_state: dict[str, Any]
    _is_in_head = False
    _num_head_bytes = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        encryption = transport.get_extra_info("ssl_object")
        if encryption is not None:
            self.app_state = {**self.app_state, CERTIFICATE_NAMES: _names(encryption.getpeercert() or {})}

    def on_message_begin(self) -> None:
        self._is_in_head, self._num_head_bytes = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._is_in_head:
            self._num_head_bytes += len(data)
            if self._num_head_bytes > _MOST_HEAD_BYTES:
                self._is_in_head = False
                self.send_400_response("The head of the request is too large.")


def _names(certificate: dict[str, Any]) -> list[str]:
    """Return the common name and the DNS names of a verified certificate."""
    common = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    return common + [value for kind, value in certificate.get("subjectAltName", ()) if kind == "DNS"]


def _tls_context(certificate: Path | None, key: Path | None, client_ca: Path | None) -> ssl.SSLContext | None:
    if certificate is None or key is None:
        if certificate is not None or key is not None or client_ca is not None:
            raise ConfigError("service.tls_certificate and service.tls_key belong together; set both")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(certificate, key, password=lambda: b"")  # without it OpenSSL asks the terminal
        if client_ca is not None:
            context.load_verify_locations(client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ValueError) as error:
        raise ConfigError(
            "service: TLS can't be set up; check that tls_certificate, tls_key (unencrypted) and tls_client_ca are PEM "
            "files that can be read and belong together"
        ) from error
    return context
