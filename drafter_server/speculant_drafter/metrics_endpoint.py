"""HTTP beside the wire: /metrics for Prometheus, /healthz for probes that don't speak gRPC, and the explorer.

It shares the event loop of the service, so an answer also says that the loop turns.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from http import HTTPStatus
from typing import Protocol

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from speculant_drafter.counts import ServerCounts, ServerState
from speculant_drafter.http_server import EXCHANGE_TIMEOUT_S, HttpRequest, HttpResponse, HttpServer, text_response
from speculant_drafter.metrics import render_metrics


class Pages(Protocol):
    """Whoever answers for a part of the paths."""

    prefix: str
    """What its paths begin with, and the whole of the shortest one."""

    async def answer(self, request: HttpRequest) -> HttpResponse:
        """Answer a request for one of its paths."""


class MetricsEndpoint:
    """Answers what is asked over HTTP."""

    def __init__(
        self,
        counts: ServerCounts,
        read_state: Callable[[], ServerState],
        read_problem: Callable[[], str],
        pages: Pages | None = None,
        *,
        timeout_s: float = EXCHANGE_TIMEOUT_S,
    ) -> None:
        """Make an endpoint; :meth:`start` opens it.

        Args:
            counts: what the service counts.
            read_state: what it holds now. Called in the event loop, at every scrape.
            read_problem: why it does not serve, one line; empty if it does. Called in the event loop.
            pages: who answers for more paths.
            timeout_s: longest that a request may take to arrive, and an answer to leave.
        """
        self._counts = counts
        self._read_state = read_state
        self._read_problem = read_problem
        self._pages = pages
        self._server = HttpServer(self._answer, timeout_s=timeout_s)

    async def start(self, address: str, tls: ssl.SSLContext | None = None) -> str:
        """Listen; return the address with the port that was given for port 0.

        Args:
            address: ``host:port``.
            tls: what encrypts; None for plain HTTP.

        Raises:
            ConfigError: the address is malformed or taken.
        """
        return await self._server.start(address, tls)

    async def close(self) -> None:
        """Stop listening and drop what is connected."""
        await self._server.close()

    async def _answer(self, request: HttpRequest) -> HttpResponse:
        if self._pages is not None and f"{request.path}/".startswith(f"{self._pages.prefix}/"):
            return await self._pages.answer(request)
        if request.method not in ("GET", "HEAD"):
            return text_response(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD", Allow="GET, HEAD")
        match request.path:
            case "/metrics":
                text = await asyncio.to_thread(render_metrics, self._counts.copy(), self._read_state())
                return HttpResponse(HTTPStatus.OK, text, CONTENT_TYPE_PLAIN_0_0_4)
            case "/healthz":
                problem = self._read_problem()
                status = HTTPStatus.SERVICE_UNAVAILABLE if problem else HTTPStatus.OK
                return text_response(status, problem or "ok")
        paths = ["/metrics", "/healthz", *([f"{self._pages.prefix}/"] if self._pages is not None else [])]
        if request.path == "/":
            return text_response(HTTPStatus.OK, f"speculant drafter: {', '.join(paths)}")
        return text_response(HTTPStatus.NOT_FOUND, f"there are {', '.join(paths[:-1])} and {paths[-1]}")
