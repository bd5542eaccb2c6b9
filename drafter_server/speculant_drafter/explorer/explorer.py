"""The explorer over HTTP: its page, and its JSON API below a path with a version."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from http import HTTPStatus
from importlib.resources import files
from typing import Any, get_args
from urllib.parse import unquote

from loguru import logger

from speculant_drafter.explorer.door import Door, is_open
from speculant_drafter.explorer.failures import JSON, error_body, is_ours, status_of
from speculant_drafter.explorer.frames import identity_of
from speculant_drafter.explorer.process import ExplorerProcess
from speculant_drafter.explorer.question import (
    MAX_BUDGET,
    MAX_CHARACTERS,
    MAX_SUCCESSORS,
    MAX_TOKENS,
    BlendName,
    default_budget,
)
from speculant_drafter.graphs import GraphRegistry, ServedGraph
from speculant_drafter.http_server import HttpRequest, HttpResponse
from speculant_graph.config import DraftConfig, ServerConfig
from speculant_graph.draft.strategies import STRATEGIES
from speculant_graph.errors import DrafterUnavailableError, DraftLimitError, DraftRequestError, UnknownGraphError
from speculant_graph.serving.access import AccessPolicy, Principal
from speculant_graph.version import VERSION
from speculant_graph.view.glyphs import GLYPHS

_API = "/explorer/api/v1/"
_GRAPHS = _API + "graphs"
_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_SECURITY = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_PER_SECOND, _BURST = 20.0, 40.0
"""Questions answered: so many for long, and so many at once."""


class Explorer:
    """Answers everything below ``/explorer``; used on the event loop alone."""

    prefix = "/explorer"

    def __init__(
        self,
        config: ServerConfig,
        draft: DraftConfig,
        graphs: GraphRegistry,
        read_policy: Callable[[], AccessPolicy],
    ) -> None:
        """Make an explorer that has nothing open yet.

        Args:
            config: whether it is served, and to whom.
            draft: how the sidecar drafts.
            graphs: what may be looked at.
            read_policy: who may come in, at present.

        Raises:
            ConfigError: it can't be served as the settings want it.
        """
        self.is_open = is_open(config)
        """Whether it is served."""
        self._draft = draft
        self._graphs = graphs
        self._read_policy = read_policy
        self._door = Door(config)
        self._process = ExplorerProcess([draft.model_dump_json(), str(config.explorer_tokenizer or "")])
        self._allowance = _Allowance()
        self._files = _read_files() if self.is_open else {}

    async def close(self) -> None:
        """End what it has started."""
        await self._process.close()

    async def answer(self, request: HttpRequest) -> HttpResponse:
        """Answer a request; whatever is wrong with it is said in JSON."""
        try:
            response = await self._answer(request)
        except Exception as error:
            status, message = status_of(error)
            if not is_ours(error):
                logger.exception("the explorer failed")
            response = HttpResponse(status, error_body(message), JSON, _headers_of(error))
        return HttpResponse(response.status, response.body, response.kind, _SECURITY | dict(response.headers))

    async def _answer(self, request: HttpRequest) -> HttpResponse:
        if not self.is_open:
            return _refusal(
                HTTPStatus.NOT_FOUND,
                "the explorer is off at this address; set server.explorer to on, or server.metrics_listen to 127.0.0.1",
            )
        if request.path == _GRAPHS:
            return self._list(request) if request.method in ("GET", "HEAD") else _not_allowed("GET, HEAD")
        if request.path.startswith(f"{_GRAPHS}/") and request.path.endswith("/look"):
            name = unquote(request.path.removeprefix(f"{_GRAPHS}/").removesuffix("/look").removesuffix("/"))
            return await self._look(request, name) if request.method == "POST" else _not_allowed("POST")
        if request.path.startswith(_API):
            return _refusal(HTTPStatus.NOT_FOUND, f"there are GET {_GRAPHS} and POST {_GRAPHS}/NAME/look")
        if request.method not in ("GET", "HEAD"):
            return _not_allowed("GET, HEAD")
        if request.path == self.prefix:
            return HttpResponse(HTTPStatus.PERMANENT_REDIRECT, b"", headers={"Location": f"{self.prefix}/"})
        found = self._files.get(request.path.removeprefix(f"{self.prefix}/") or "index.html")
        if found is None:
            return _refusal(HTTPStatus.NOT_FOUND, f"there is no such page; open {self.prefix}/")
        return found

    def _list(self, request: HttpRequest) -> HttpResponse:
        principal = self._door.principal_of(request, self._read_policy())
        if not self._graphs.is_ready:
            raise DrafterUnavailableError("the drafter is loading its graphs; try again in a moment")
        draft = self._draft
        return _json(
            {
                "version": VERSION,
                "graphs": [
                    _described(served, served.name == self._graphs.default)
                    for served in self._graphs
                    if principal.may_use_graph(served.name)
                ],
                "defaults": {"strategy": draft.strategy, "budget": default_budget(draft.k)},
                "strategies": STRATEGIES,
                "blends": get_args(BlendName),
                "limits": {
                    "characters": MAX_CHARACTERS,
                    "tokens": MAX_TOKENS,
                    "successors": MAX_SUCCESSORS,
                    "budget": MAX_BUDGET,
                },
                "glyphs": GLYPHS,
            }
        )

    async def _look(self, request: HttpRequest, name: str) -> HttpResponse:
        principal = self._door.principal_of(request, self._read_policy())
        self._allowance.take()
        # Pages elsewhere can't send this kind without the browser asking first, which is answered no.
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != JSON:
            raise DraftRequestError(f"send the question as Content-Type: {JSON}")
        served = self._served(principal, name)
        header, body = await self._process.ask(
            {
                "graph": {
                    "name": served.name,
                    "generation": served.generation,
                    "path": str(served.path),
                    "identity": _identity(served),
                    "tokenizer": served.tokenizer.name,
                },
                "served": [each.generation for each in self._graphs],
            },
            request.body,
        )
        if header.get("log"):
            logger.error("the explorer's process failed\n{}", header["log"])
        return HttpResponse(HTTPStatus(header["status"]), body, JSON)

    def _served(self, principal: Principal, name: str) -> ServedGraph:
        # A graph that a client may not use is like one that is not there.
        unknown = UnknownGraphError(f"no graph of this name is served; ask GET {_GRAPHS} which there are")
        try:
            served = self._graphs.get(name)
        except UnknownGraphError:
            raise unknown from None
        if not name or not principal.may_use_graph(served.name):
            raise unknown
        return served


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


def _read_files() -> dict[str, HttpResponse]:
    return {
        file.name: HttpResponse(HTTPStatus.OK, file.read_bytes(), _KINDS[suffix])
        for file in files("speculant_drafter.explorer").joinpath("page").iterdir()
        if (suffix := file.name[file.name.rfind(".") :]) in _KINDS
    }


def _described(served: ServedGraph, is_default: bool) -> dict[str, Any]:
    graph = served.drafter.graph
    assert graph is not None
    metadata = graph.metadata
    return {
        "name": served.name,
        "is_default": is_default,
        "generation": served.generation,
        "tokenizer": served.tokenizer.name,
        "vocabulary_size": served.tokenizer.vocabulary_size,
        "max_order": served.max_order,
        "num_tokens": metadata.num_tokens,
        "num_documents": metadata.num_documents,
        "num_contexts": sum(metadata.contexts_per_order),
        "num_transitions": sum(metadata.transitions_per_order),
        "built_at": metadata.built_at,
    }


def _identity(served: ServedGraph) -> str:
    graph = served.drafter.graph
    assert graph is not None
    return identity_of(graph.metadata)


def _headers_of(error: Exception) -> dict[str, str]:
    if isinstance(error, DraftLimitError) and error.retry_delay_s:
        return {"Retry-After": f"{error.retry_delay_s:.0f}"}
    return {"WWW-Authenticate": "Bearer"} if status_of(error)[0] is HTTPStatus.UNAUTHORIZED else {}


def _json(content: dict[str, Any]) -> HttpResponse:
    return HttpResponse(HTTPStatus.OK, json.dumps(content).encode() + b"\n", JSON)


def _refusal(status: HTTPStatus, message: str) -> HttpResponse:
    return HttpResponse(status, error_body(message), JSON)


def _not_allowed(methods: str) -> HttpResponse:
    message = f"use {methods.replace(', ', ' or ')} here"
    return HttpResponse(HTTPStatus.METHOD_NOT_ALLOWED, error_body(message), JSON, {"Allow": methods})
