"""A small HTTP server on the event loop of the service: few connections, one short exchange on each.

h11 reads and writes the protocol. One that is not done in time is dropped, and of too many the oldest gives way.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus

import h11
from loguru import logger

from speculant_graph.rpc.addresses import require_port
from speculant_graph.serving.listening import bind_tcp

PLAIN_TEXT = "text/plain; charset=utf-8"
_MAX_HEAD_BYTES = 8_192
_MAX_BODY_BYTES = 1 << 18
_MAX_CONNECTIONS = 32
_MAX_UNREAD_BYTES = 1 << 20
_LINGER_S = 1.0
"""What a refused request may still send, and for how long, so that its client gets to read why."""
_PIECE = 65_536
EXCHANGE_TIMEOUT_S = 5.0
"""Longest that a request may take to arrive, and an answer to leave."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """What a client asks."""

    method: str
    """GET, POST, ..."""
    path: str
    """Path of the target, as it was sent and without what follows a question mark."""
    headers: Mapping[str, str]
    """By lower-case name."""
    body: bytes = b""
    """What was sent with it."""
    certificate_names: tuple[str, ...] | None = None
    """Common name and DNS names of the client's verified certificate; None if it showed none."""


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """What it is answered. A request with HEAD gets no body."""

    status: HTTPStatus
    """The status."""
    body: bytes
    """The content."""
    kind: str = PLAIN_TEXT
    """Its media type."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """More headers."""


def text_response(status: HTTPStatus, text: str, **headers: str) -> HttpResponse:
    """Return a line of text as an answer; of the names of headers underscores become dashes."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return HttpResponse(status, f"{text}\n".encode(), headers=named)


class HttpServer:
    """Listens on one address."""

    def __init__(
        self, answer: Callable[[HttpRequest], Awaitable[HttpResponse]], *, timeout_s: float = EXCHANGE_TIMEOUT_S
    ) -> None:
        """Make a server; :meth:`start` opens it.

        Args:
            answer: what becomes of a request. Its own time is its own business.
            timeout_s: longest that a request may take to arrive, and an answer to leave.
        """
        self._answer = answer
        self._timeout_s = timeout_s
        self._server: asyncio.Server | None = None
        self._exchanges: dict[asyncio.Task[None], asyncio.StreamWriter] = {}  # the oldest first

    async def start(self, address: str, tls: ssl.SSLContext | None = None) -> str:
        """Listen; return the address with the port that was given for port 0.

        Args:
            address: ``host:port``.
            tls: what encrypts; None for plain HTTP.

        Raises:
            ConfigError: the address is malformed or taken.
        """
        require_port(address, "--server.metrics-listen")
        host = address.rpartition(":")[0]
        sockets = bind_tcp(address, "--server.metrics-listen")
        timeout_s = None if tls is None else self._timeout_s
        self._server = await asyncio.start_server(
            self._accept, sock=sockets[0], ssl=tls, ssl_handshake_timeout=timeout_s
        )
        return f"{host}:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        """Stop listening and drop what is connected."""
        if self._server is None:
            return
        self._server.close()
        exchanges = list(self._exchanges)
        while self._exchanges:
            self._drop_oldest()
        await asyncio.gather(*exchanges, return_exceptions=True)
        await self._server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # The task is ours: asyncio's own would report the exchanges that are cancelled as errors.
        exchange = asyncio.create_task(self._exchange(reader, writer))
        self._exchanges[exchange] = writer
        exchange.add_done_callback(lambda done: self._exchanges.pop(done, None))
        if len(self._exchanges) > _MAX_CONNECTIONS:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        exchange = next(iter(self._exchanges))
        # Of many that came at once the task has not begun, and would end without a look at its connection.
        self._exchanges.pop(exchange).transport.abort()
        exchange.cancel()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=_MAX_HEAD_BYTES)
        is_whole = with_body = True
        try:
            try:
                async with asyncio.timeout(self._timeout_s):
                    request = await _read(connection, reader, writer)
            except h11.RemoteProtocolError as error:
                is_whole = False
                response = _refusal(HTTPStatus(error.error_status_hint))
            else:
                with_body = request.method != "HEAD"
                response = await self._answered(request)
            async with asyncio.timeout(self._timeout_s):
                writer.write(_encoded(connection, response, with_body=with_body))
                await writer.drain()
                if not is_whole:
                    await _read_out(reader, writer)
                writer.close()
                await writer.wait_closed()
        except (TimeoutError, OSError, EOFError):
            pass  # it is slow, or gone
        finally:
            writer.transport.abort()

    async def _answered(self, request: HttpRequest) -> HttpResponse:
        try:
            return await self._answer(request)
        except Exception:
            logger.exception("an HTTP request failed")
            return text_response(HTTPStatus.INTERNAL_SERVER_ERROR, "the drafter failed on this; its log says why")


async def _read(connection: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> HttpRequest:
    """Read a whole request.

    Raises:
        h11.RemoteProtocolError: it is none, or too large.
        EOFError: the client went away.
    """
    head: h11.Request | None = None
    body = bytearray()
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            if connection.they_are_waiting_for_100_continue:
                writer.write(connection.send(h11.InformationalResponse(status_code=100, headers=[])) or b"")
            connection.receive_data(await reader.read(_PIECE))
        elif isinstance(event, h11.Request):
            head = event
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > _MAX_BODY_BYTES:
                raise h11.RemoteProtocolError("too large", HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        elif isinstance(event, h11.EndOfMessage) and head is not None:
            return HttpRequest(
                method=head.method.decode("ascii"),
                path=head.target.decode("ascii").partition("?")[0],
                headers={name.decode("ascii"): value.decode("latin-1") for name, value in head.headers},
                body=bytes(body),
                certificate_names=_certificate_names(writer.get_extra_info("peercert")),
            )
        else:
            raise EOFError


async def _read_out(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Take what a refused client still sends: hung up on at once, it would not see the answer."""
    if writer.can_write_eof():
        writer.write_eof()
    num_bytes = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(_LINGER_S):
            while num_bytes < _MAX_UNREAD_BYTES and (piece := await reader.read(_PIECE)):
                num_bytes += len(piece)


def _encoded(connection: h11.Connection, response: HttpResponse, *, with_body: bool) -> bytes:
    headers = {
        "Content-Type": response.kind,
        "Content-Length": str(len(response.body)),
        "Cache-Control": "no-store",
        "Connection": "close",
        **response.headers,
    }
    head = h11.Response(
        status_code=response.status, reason=response.status.phrase.encode(), headers=list(headers.items())
    )
    # A body of known length is on the wire what it is here.
    return (connection.send(head) or b"") + (response.body if with_body else b"")


def _refusal(status: HTTPStatus) -> HttpResponse:
    if status is HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        return text_response(status, f"a request's content has at most {_MAX_BODY_BYTES} bytes; send less")
    if status is HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE:
        return text_response(status, f"a request's headers have at most {_MAX_HEAD_BYTES} bytes; send less")
    return text_response(status, "send an HTTP/1.1 request")


def _certificate_names(certificate: Mapping[str, object] | None) -> tuple[str, ...] | None:
    """Return the common name and the DNS names of what :meth:`ssl.SSLSocket.getpeercert` returned."""
    if not certificate:
        return None
    subject: object = certificate.get("subject", ())
    others: object = certificate.get("subjectAltName", ())
    assert isinstance(subject, tuple)
    assert isinstance(others, tuple)
    names = [value for part in subject for key, value in part if key == "commonName"]
    return (*names, *(value for kind, value in others if kind == "DNS"))
