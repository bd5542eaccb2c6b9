"""The explorer: a page on which people look into the graphs that are served, and the JSON behind it.

It runs in the thread of HTTP; look-ups, one at a time, in another one. They reach the graphs: no sessions, no learned
text, no keys.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from speculant_drafter.graphs import GraphRegistry, ServedGraph
from speculant_graph.config import DraftConfig, ServerConfig
from speculant_graph.corpus.tokenize import CorpusTokenizer
from speculant_graph.errors import (
    ConfigError,
    DrafterUnavailableError,
    DraftLimitError,
    DraftRequestError,
    UnknownGraphError,
)
from speculant_graph.rpc.addresses import is_loopback
from speculant_graph.serving.access import Principal
from speculant_graph.serving.credentials import tls_context
from speculant_graph.serving.http_middleware import PRINCIPAL, AccessRules
from speculant_graph.types import Fingerprint
from speculant_graph.view.look_up import GraphLookUp, described, find_tokenizer, listed
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
"""Headers of every answer."""
_PER_SECOND, _BURST = 20.0, 40.0
"""Questions answered: so many for long, and so many at once."""
_MAX_WAITING = 8
_MAX_BODY_BYTES, _BODY_TIMEOUT_S = 1 << 18, 5.0


def is_open(config: ServerConfig) -> bool:
    """Return whether the explorer is served.

    Raises:
        ConfigError: it is wanted where there is no HTTP, or where keys would travel in the clear.
    """
    host = _host(config)
    if config.explorer != "on":
        # Without TLS no client can present the certificate that gRPC requires of clients.
        return config.explorer == "auto" and is_loopback(host) and config.tls_client_ca is None
    if not config.metrics_listen:
        raise ConfigError("server.explorer is on, but there is no HTTP; set server.metrics_listen to host:port")
    if config.access_file is not None and config.tls_certificate is None and not is_loopback(host):
        raise ConfigError(
            f"server.explorer would take keys in the clear on {config.metrics_listen}; set server.tls_certificate and "
            "server.tls_key, or listen on 127.0.0.1"
        )
    return True


def http_tls(config: ServerConfig) -> ssl.SSLContext | None:
    """Return what encrypts HTTP: the certificate of gRPC, where the explorer is turned on; None for plain HTTP."""
    context = tls_context(config) if config.explorer == "on" else None
    if context is not None and config.tls_client_ca is not None:
        context.verify_mode = ssl.CERT_OPTIONAL  # probes have none; the middleware requires it before it shows data
    return context


def access_rules(config: ServerConfig) -> AccessRules:
    """Return what requests for data must satisfy."""
    return AccessRules(
        prefixes=(API,) if is_open(config) else (),
        max_requests=_MAX_WAITING,
        max_body_bytes=_MAX_BODY_BYTES,
        body_timeout_s=_BODY_TIMEOUT_S,
        needs_certificate=config.tls_client_ca is not None,
        own_host=_host(config),
    )


class Explorer:
    """Answers what is below ``/explorer``."""

    def __init__(self, config: ServerConfig, draft: DraftConfig, graphs: GraphRegistry) -> None:
        """Make an explorer that has looked at nothing yet.

        Args:
            config: whether it is served.
            draft: how the sidecar drafts.
            graphs: what may be looked at.

        Raises:
            ConfigError: it can't be served as the settings want it.
        """
        self.is_open = is_open(config)
        """Whether it is served."""
        self._draft = draft
        self._graphs = graphs
        self._tokenizer_folder = config.explorer_tokenizer
        self._tokenizers: dict[str, tuple[CorpusTokenizer | None, str]] = {}
        self._look_ups: dict[int, GraphLookUp] = {}
        self._worker = ThreadPoolExecutor(1, "explorer")
        self._allowance = _Allowance()
        self._files = _read_files() if self.is_open else {}

    async def prepare(self, tokenizers: Iterable[Fingerprint]) -> None:
        """Load tokenizers before anything is drafted: the library that reads them stops all threads for a second."""
        if self.is_open:
            for tokenizer in tokenizers:
                await asyncio.get_running_loop().run_in_executor(self._worker, self._tokenizer, tokenizer)

    def close(self) -> None:
        """Wait for the look-up that runs."""
        self._worker.shutdown(cancel_futures=True)

    def routes(self) -> list[Route]:
        """Return what answers."""
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
        raise HTTPException(
            404, "the explorer is off at this address; set server.explorer to on, or server.metrics_listen to 127.0.0.1"
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
        principal: Principal = request.scope[PRINCIPAL]
        if not self._graphs.is_ready:
            raise DrafterUnavailableError("the drafter is loading its graphs; try again in a moment")
        graphs = [
            described(
                served.graph,
                served.name,
                served.tokenizer.name,
                served.generation,
                is_default=served.name == self._graphs.default,
            )
            for served in self._graphs
            if principal.may_use_graph(served.name)
        ]
        return json_response(listed(graphs, self._draft))

    async def _look(self, request: Request) -> Response:
        self._allowance.take()
        # Pages elsewhere can't send this kind without the browser asking first, which is answered no.
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise DraftRequestError("send the question as Content-Type: application/json")
        served = self._served(request.scope[PRINCIPAL], request.path_params["name"])
        body = await request.body()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._worker, self._answer, served, body)

    def _served(self, principal: Principal, name: str) -> ServedGraph:
        # A graph that a client may not use is like one that is not there.
        served = next((served for served in self._graphs if served.name == name), None)
        if served is None and not self._graphs.is_ready:
            raise DrafterUnavailableError("the drafter is loading its graphs; try again in a moment")
        if served is None or not principal.may_use_graph(name):
            raise UnknownGraphError(f"no graph of this name is served; ask GET {_GRAPHS} which there are")
        return served

    # In the worker's thread.

    def _answer(self, served: ServedGraph, body: bytes) -> Response:
        question = Question.read(body)
        for generation in self._look_ups.keys() - {each.generation for each in self._graphs}:
            del self._look_ups[generation]
        look_up = self._look_ups.get(served.generation)
        if look_up is None:
            tokenizer, problem = self._tokenizer(served.graph.metadata.tokenizer)
            look_up = self._look_ups[served.generation] = GraphLookUp(served.graph, self._draft, tokenizer, problem)
        answer = {"graph": served.name, "generation": served.generation, **look_up.answer(question)}
        return json_response(answer)

    def _tokenizer(self, expected: Fingerprint) -> tuple[CorpusTokenizer | None, str]:
        if expected.sha256 not in self._tokenizers:
            self._tokenizers[expected.sha256] = find_tokenizer(expected, self._tokenizer_folder)
        return self._tokenizers[expected.sha256]


def json_response(content: dict[str, Any], status: int = 200, headers: Mapping[str, str] = SECURITY) -> Response:
    """Return an answer of one line of ASCII, as it is also read by curl."""
    body = json.dumps(content, allow_nan=False).encode() + b"\n"
    return Response(body, status, headers, media_type="application/json")


class _Allowance:
    """How many questions are still answered now."""

    def __init__(self) -> None:
        self._left = _BURST
        self._counted_s = time.monotonic()

    def take(self) -> None:
        now_s = time.monotonic()
        self._left = min(_BURST, self._left + (now_s - self._counted_s) * _PER_SECOND)
        self._counted_s = now_s
        if self._left < 1.0:
            raise DraftLimitError(f"the explorer answers {_PER_SECOND:g} questions a second; wait a second", 1.0)
        self._left -= 1.0


def _host(config: ServerConfig) -> str:
    return config.metrics_listen.rpartition(":")[0].strip("[]")


def _read_files() -> dict[str, bytes]:
    page = files("speculant_graph.view").joinpath("page")
    return {file.name: file.read_bytes() for file in page.iterdir()}
