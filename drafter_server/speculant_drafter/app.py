"""The HTTP server of the sidecar: /metrics for Prometheus, /healthz for HTTP probes, and the explorer.

The explorer is a web page that shows the served graphs, together with the JSON API that the page calls. The explorer
runs in the HTTP thread; its graph lookups run in another thread, one at a time. Lookups can read graphs, but not
sessions, learned text or access keys.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from speculant_drafter.graphs import GraphRegistry, ServedGraph, loading
from speculant_graph.config import AccessConfig, DraftConfig, ServerConfig
from speculant_graph.corpus.tokenize import CorpusTokenizer, local_tokenizer
from speculant_graph.errors import (
    ANSWERS,
    AccessError,
    ApiError,
    ConfigError,
    DraftRequestError,
    OverloadError,
    SpeculantError,
    TokenizerMismatchError,
    UnavailableError,
    UnknownGraphError,
)
from speculant_graph.rpc.addresses import is_loopback
from speculant_graph.serving.access import ANONYMOUS, AccessPolicy, Principal
from speculant_graph.serving.http import METRICS_TYPE, PRINCIPAL, AccessMiddleware, AccessRules
from speculant_graph.types import Fingerprint
from speculant_graph.view.lookup import GraphLookup, described, listed
from speculant_graph.view.question import Question

PATH = "/explorer"
API = "/explorer/api/v1/"
_GRAPHS = API + "graphs"
_MEDIA_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
SECURITY = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
"""Security and caching headers of the explorer's responses and of all error responses."""
_MAX_WAITING = 8
"""Maximum number of concurrent requests to the explorer's API."""
_MAX_BODY_BYTES, _BODY_TIMEOUT_S = 1 << 18, 5.0
_PATHS = "/metrics, /healthz, /explorer/ and /explorer/api/v1/graphs"
_NO_TOKENIZER = (
    "the sidecar does not have the graph's tokenizer; put its tokenizer.json next to the graph file and install "
    '"speculant-graph[build]", or use token ids'
)
_FAILED = "the sidecar failed on this request; its log says why"
_NO_STORE = {"Cache-Control": "no-store"}


def create_app(
    explorer: Explorer,
    read_policy: Callable[[], AccessPolicy],
    render_metrics: Callable[[], bytes],
    read_problem: Callable[[], UnavailableError | None],
) -> ASGIApp:
    """Return the ASGI application of a sidecar.

    Args:
        explorer: handler of requests under ``/explorer``.
        read_policy: returns the current access policy.
        render_metrics: returns the text for Prometheus.
        read_problem: returns the reason why the sidecar is not serving; None if it is.
    """
    rules = AccessRules(
        prefixes=(API,) if explorer.is_open else (),
        max_requests=_MAX_WAITING,
        max_body_bytes=_MAX_BODY_BYTES,
        body_timeout_s=_BODY_TIMEOUT_S,
    )

    def index(request: Request) -> Response:
        return PlainTextResponse(f"speculant drafter: {_PATHS}\n", headers=_NO_STORE)

    async def metrics(request: Request) -> Response:
        return Response(render_metrics(), media_type=METRICS_TYPE, headers=_NO_STORE)

    async def health(request: Request) -> Response:
        problem = read_problem()
        return PlainTextResponse(f"{problem.message if problem else 'ok'}\n", 503 if problem else 200, _NO_STORE)

    async def refuse_request(request: Request, error: Exception) -> Response:
        return refuse(error)

    # Starlette raises unknown errors again after the response, so they are logged.
    handlers: Any = dict.fromkeys((SpeculantError, HTTPException, Exception), refuse_request)
    app = Starlette(
        routes=[Route("/", index), Route("/metrics", metrics), Route("/healthz", health), *explorer.routes()],
        exception_handlers=handlers,
    )
    app.router.redirect_slashes = False
    return AccessMiddleware(app, rules, read_policy, refuse)


def refuse(error: Exception) -> Response:
    """Return the HTTP response to a failed request: a status code, and a one-line message with a fix.

    For an unexpected error, the message points to the log instead of a fix.
    """
    headers = dict(SECURITY)
    if isinstance(error, HTTPException):  # raised by Starlette
        status = error.status_code
        headers |= error.headers or {}
        use = headers.get("Allow", "GET").replace(", ", " or ")
        message = f"use {use} here" if status == 405 else f"there is nothing at this path; there are {_PATHS}"
    else:
        status = ANSWERS[error.kind].http if isinstance(error, SpeculantError) else 500
        message = str(error) if status < 500 or isinstance(error, UnavailableError) else _FAILED
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, OverloadError):
        headers["Retry-After"] = f"{error.retry_delay_s:.0f}"
    return json_response({"error": message}, status, headers)


def is_open(config: ServerConfig, access: AccessConfig) -> bool:
    """Return whether to serve the explorer: only on loopback, and only if gRPC requires no client certificates."""
    return is_loopback(config.metrics_listen.rpartition(":")[0]) and access.tls_client_ca is None


class Explorer:
    """Handles requests under ``/explorer``."""

    def __init__(self, config: ServerConfig, access: AccessConfig, draft: DraftConfig, graphs: GraphRegistry) -> None:
        """Make an explorer; it loads its tokenizers later.

        Args:
            config: server settings with the HTTP address and the default graph, whose folder may contain tokenizers.
            access: access settings, which decide whether clients need certificates.
            draft: draft settings of the sidecar.
            graphs: the served graphs.
        """
        self.is_open = is_open(config, access)
        """Whether the explorer is served."""
        self._draft = draft
        self._graphs = graphs
        self._tokenizer_folder = config.graph.parent
        self._tokenizers: dict[str, tuple[CorpusTokenizer | None, str]] = {}
        self._lookups: dict[int, GraphLookup] = {}
        self._worker = ThreadPoolExecutor(1, "explorer")
        self._files = _read_files() if self.is_open else {}

    async def prepare(self, tokenizers: Iterable[Fingerprint]) -> None:
        """Load tokenizers before the first draft, because the tokenizer library blocks all threads for a second."""
        if self.is_open:
            for tokenizer in tokenizers:
                await asyncio.get_running_loop().run_in_executor(self._worker, self._tokenizer, tokenizer)

    def close(self) -> None:
        """Wait for the running lookup, and cancel the queued lookups."""
        self._worker.shutdown(cancel_futures=True)

    def routes(self) -> list[Route]:
        """Return the HTTP routes of the explorer's page and of its API."""
        if not self.is_open:
            return [Route(PATH, self._closed), Route(PATH + "/{name:path}", self._closed)]
        return [
            Route(_GRAPHS, self._list),
            Route(_GRAPHS + "/{name}/look", self._look, methods=["POST"]),
            Route(PATH, self._redirect),
            Route(PATH + "/", self._page),
            Route(PATH + "/{name}", self._page),
        ]

    async def _closed(self, request: Request) -> Response:
        raise ApiError(
            "no_such_path",
            "the explorer is off at this address",
            fix="set server.metrics_listen to 127.0.0.1, without access.tls_client_ca, and forward the port",
        )

    async def _redirect(self, request: Request) -> Response:
        return RedirectResponse(f"{PATH}/", 308, SECURITY)

    async def _page(self, request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        if name not in self._files:
            raise HTTPException(404)
        suffix = name[name.rfind(".") :]
        return Response(self._files[name], headers=SECURITY, media_type=_MEDIA_TYPES[suffix])

    async def _list(self, request: Request) -> Response:
        principal = _principal(request)
        if not self._graphs.is_ready:
            raise loading()
        graphs = [
            described(
                served.graph,
                served.name,
                served.generation,
                is_default=served.name == self._graphs.default,
            )
            for served in self._graphs
            if principal.may_use_graph(served.name)
        ]
        return json_response(listed(graphs, self._draft))

    async def _look(self, request: Request) -> Response:
        # For this content type, a browser sends a preflight request for pages of other origins, which is refused.
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise DraftRequestError("send the question as Content-Type: application/json")
        served = self._served(_principal(request), request.path_params["name"])
        body = await request.body()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._worker, self._answer, served, body)

    def _served(self, principal: Principal, name: str) -> ServedGraph:
        # A graph that the client may not use gets the same response as a missing one.
        served = next((served for served in self._graphs if served.name == name), None)
        if served is None and not self._graphs.is_ready:
            raise loading()
        if served is None or not principal.may_use_graph(name):
            raise UnknownGraphError(f"no graph of this name is served; GET {_GRAPHS} lists the graphs")
        return served

    # Methods that run in the worker thread.

    def _answer(self, served: ServedGraph, body: bytes) -> Response:
        question = Question.read(body)
        for generation in self._lookups.keys() - {each.generation for each in self._graphs}:
            del self._lookups[generation]
        lookup = self._lookups.get(served.generation)
        if lookup is None:
            tokenizer, problem = self._tokenizer(served.graph.metadata.tokenizer)
            lookup = self._lookups[served.generation] = GraphLookup(served.graph, self._draft, tokenizer, problem)
        answer = {"graph": served.name, "generation": served.generation, **lookup.answer(question)}
        return json_response(answer)

    def _tokenizer(self, expected: Fingerprint) -> tuple[CorpusTokenizer | None, str]:
        if expected.sha256 not in self._tokenizers:
            try:
                self._tokenizers[expected.sha256] = local_tokenizer(expected, self._tokenizer_folder), ""
            except (ConfigError, TokenizerMismatchError, ModuleNotFoundError):
                self._tokenizers[expected.sha256] = None, _NO_TOKENIZER
        return self._tokenizers[expected.sha256]


def _principal(request: Request) -> Principal:
    """Return the client that sent an HTTP request.

    Raises:
        AccessError: no keys are required, and the request's host is not this machine. In a DNS rebinding attack, a
            browser has loaded a page of another site, whose name then resolves to this machine. The browser would then
            let that site's page read this server's responses.
    """
    principal: Principal = request.scope[PRINCIPAL]
    host = request.headers.get("host", "").lower()
    name = host.rpartition(":")[0] if ":" in host.rpartition("]")[2] else host
    if principal is ANONYMOUS and not is_loopback(name):
        raise AccessError("without an access file the explorer answers only at localhost and 127.0.0.1; open it there")
    return principal


def json_response(content: dict[str, Any], status: int = 200, headers: Mapping[str, str] = SECURITY) -> Response:
    """Return a JSON response as one line of ASCII, which is also readable with curl."""
    body = json.dumps(content, allow_nan=False).encode() + b"\n"
    return Response(body, status, headers, media_type="application/json")


def _read_files() -> dict[str, bytes]:
    page = files("speculant_graph.view").joinpath("page")
    return {file.name: file.read_bytes() for file in page.iterdir()}
