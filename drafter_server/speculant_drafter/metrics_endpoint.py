"""HTTP beside the wire: /metrics for Prometheus and /healthz for probes that don't speak gRPC.

It shares the event loop of the service, so an answer also says that the loop turns. Connections are few and short: one
that is not done in time is dropped, and of too many the oldest gives way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from speculant_drafter.counts import ServerCounts, ServerState
from speculant_drafter.metrics import render_metrics
from speculant_graph.errors import ConfigError
from speculant_graph.rpc.channel import socket_path

_PLAIN_TEXT = "text/plain; charset=utf-8"
_MAX_REQUEST_BYTES = 8_192
_MAX_CONNECTIONS = 32
_EXCHANGE_TIMEOUT_S = 5.0


class MetricsEndpoint:
    """A small HTTP server."""

    def __init__(
        self,
        counts: ServerCounts,
        read_state: Callable[[], ServerState],
        read_problem: Callable[[], str],
        *,
        timeout_s: float = _EXCHANGE_TIMEOUT_S,
    ) -> None:
        """Make an endpoint; :meth:`start` opens it.

        Args:
            counts: what the service counts.
            read_state: what it holds now. Called in the event loop, at every scrape.
            read_problem: why it does not serve, one line; empty if it does. Called in the event loop.
            timeout_s: longest that one exchange may take.
        """
        self._counts = counts
        self._read_state = read_state
        self._read_problem = read_problem
        self._timeout_s = timeout_s
        self._server: asyncio.Server | None = None
        self._exchanges: dict[asyncio.Task[None], asyncio.StreamWriter] = {}  # the oldest first

    async def start(self, address: str) -> str:
        """Listen; return the address with the port that was given for port 0.

        Args:
            address: ``host:port``.

        Raises:
            ConfigError: the address is malformed or taken.
        """
        if socket_path(address) is not None:
            raise ConfigError(f"server.metrics_listen: {address} is a Unix socket; write host:port")
        host, _, port = address.rpartition(":")
        try:
            self._server = await asyncio.start_server(
                self._accept, host.strip("[]"), int(port), limit=_MAX_REQUEST_BYTES
            )
        except OSError as error:
            raise ConfigError(
                f"server.metrics_listen: can't listen on {address}: in use or not this machine's; choose another"
            ) from error
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
        try:
            async with asyncio.timeout(self._timeout_s):
                try:
                    request = await reader.readuntil(b"\r\n\r\n")
                except asyncio.LimitOverrunError:
                    request = b""
                writer.write(await self._answer(request))
                writer.close()
                await writer.wait_closed()
        except (TimeoutError, OSError, asyncio.IncompleteReadError):
            pass  # it is slow, or gone
        finally:
            writer.transport.abort()

    async def _answer(self, request: bytes) -> bytes:
        words = request.partition(b"\r\n")[0].decode("latin-1").split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return _response(HTTPStatus.BAD_REQUEST, "send an HTTP/1.1 request\n")
        method, target, _ = words
        if method not in ("GET", "HEAD"):
            return _response(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD\n", extra="Allow: GET, HEAD\r\n")
        with_body = method == "GET"
        match target.partition("?")[0]:
            case "/metrics":
                text = await asyncio.to_thread(render_metrics, self._counts.copy(), self._read_state())
                return _response(HTTPStatus.OK, text, CONTENT_TYPE_PLAIN_0_0_4, with_body=with_body)
            case "/healthz":
                problem = self._read_problem()
                status = HTTPStatus.SERVICE_UNAVAILABLE if problem else HTTPStatus.OK
                return _response(status, f"{problem or 'ok'}\n", with_body=with_body)
            case "/":
                return _response(HTTPStatus.OK, "speculant drafter: /metrics, /healthz\n", with_body=with_body)
        return _response(HTTPStatus.NOT_FOUND, "there are /metrics and /healthz\n", with_body=with_body)


def _response(
    status: HTTPStatus, content: str | bytes, kind: str = _PLAIN_TEXT, *, extra: str = "", with_body: bool = True
) -> bytes:
    body = content.encode() if isinstance(content, str) else content
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        f"Cache-Control: no-store\r\nConnection: close\r\n{extra}\r\n"
    )
    return head.encode("latin-1") + (body if with_body else b"")
