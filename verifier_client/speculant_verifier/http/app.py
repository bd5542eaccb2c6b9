"""The application: endpoints, and the document that describes what they take.

FastAPI checks bodies and writes the OpenAPI document. Its pages at /docs are off, as browsers would have to load them
from elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import PlainTextResponse, Response
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from speculant_graph.config import GenerationConfig, ServiceConfig
from speculant_graph.errors import SpeculantError
from speculant_graph.serving.access import AccessPolicy
from speculant_graph.serving.http import METRICS_TYPE
from speculant_graph.serving.http_middleware import PRINCIPAL, AccessMiddleware, AccessRules
from speculant_graph.version import VERSION
from speculant_verifier.decoder import SpeculativeDecoder
from speculant_verifier.harmony import HarmonyTokens
from speculant_verifier.http.builders import ChatBuilder, CompletionBuilder, ServedModel
from speculant_verifier.http.errors import error_of, no_such_model
from speculant_verifier.http.logprobs import TokenTexts
from speculant_verifier.http.mapping import RequestMapping
from speculant_verifier.http.responses.endpoint import Responses
from speculant_verifier.http.responses.schemas import ResponsesRequest
from speculant_verifier.http.schemas import ChatRequest, CompletionRequest
from speculant_verifier.http.streaming import Decoding, GenerationResponse
from speculant_verifier.load import Load

API = ("/v1/",)
"""Prefixes of paths that need access."""
_ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/models", "/v1/responses")
_ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"description": "A field is wrong, unknown or not supported."},
    401: {"description": "The key is missing or unknown."},
    403: {"description": "The tenant is not the client's."},
    404: {"description": "There is no such model."},
    408: {"description": "The body did not come in time."},
    413: {"description": "The body is too large."},
    429: {"description": "Too many requests wait."},
    503: {"description": "The server is starting or going away."},
}
_STREAM = (
    "With stream = true: an event for every piece, and at last [DONE]. An object with the field error ends it early."
)
_GENERATION: dict[int | str, dict[str, Any]] = {
    200: {"description": _STREAM, "content": {"application/json": {}, "text/event-stream": {}}},
    **_ERRORS,
}


def create_app(
    decoder: SpeculativeDecoder,
    config: ServiceConfig,
    policy: AccessPolicy | Callable[[], AccessPolicy],
    defaults: GenerationConfig,
    *,
    load: Load,
    read_problem: Callable[[], str],
    render_metrics: Callable[[], bytes],
    count_request: Callable[[str, int], None] = lambda endpoint, status: None,
) -> ASGIApp:
    """Return the OpenAI-compatible API as an ASGI application.

    Args:
        decoder: decodes; the caller closes it, after the server.
        config: model name and limits.
        policy: the access policy, or what returns it at every request.
        defaults: settings that requests do not name.
        load: counts what is under way, here and elsewhere.
        read_problem: why nothing is served, one line; empty if it is. Called in the event loop.
        render_metrics: text for Prometheus. Called in the event loop.
        count_request: called in the event loop for every request to the API that is over, with endpoint and status.

    Raises:
        ConfigError: the model was given without its tokenizer.
    """
    model_id = config.model_id or PurePath(decoder.target.name).name
    model = ServedModel(model_id, decoder.target, TokenTexts(decoder.target), HarmonyTokens.of(decoder))
    mapping = RequestMapping(decoder, load, defaults, model_id)
    decoding = Decoding(decoder, load)
    responses = Responses(mapping, decoding, model)
    described = {
        "id": model_id,
        "object": "model",
        "created": int(time.time()),
        "owned_by": "speculant-graph",
        "max_model_len": decoder.target.max_length,
    }
    app = FastAPI(title="speculant-graph", version=VERSION, docs_url=None, redoc_url=None, exception_handlers=_HANDLERS)
    with_key = [Depends(HTTPBearer(auto_error=False, description="Where the server has an access file."))]
    of_generation: dict[str, Any] = {"dependencies": with_key, "responses": _GENERATION}
    of_models: dict[str, Any] = {
        "dependencies": with_key,
        "responses": {status: _ERRORS[status] for status in (401, 503)},
    }

    @app.post("/v1/chat/completions", **of_generation)
    async def chat(request: ChatRequest, connection: Request) -> Response:
        """Answer a conversation."""
        context = await mapping.chat(request, connection.scope[PRINCIPAL])
        return GenerationResponse(decoding, context, ChatBuilder(context, model), is_stream=request.stream)

    @app.post("/v1/completions", **of_generation)
    async def complete(request: CompletionRequest, connection: Request) -> Response:
        """Continue texts."""
        context = await mapping.completion(request, connection.scope[PRINCIPAL])
        builder = CompletionBuilder(context, replace(model, harmony=None))
        return GenerationResponse(decoding, context, builder, is_stream=request.stream)

    @app.post("/v1/responses", **of_generation)
    async def respond(request: ResponsesRequest, connection: Request) -> Response:
        """Answer a conversation, item by item."""
        return await responses.respond(request, connection.scope[PRINCIPAL])

    @app.get("/v1/models", **of_models)
    async def models() -> dict[str, Any]:
        """List the models."""
        return {"object": "list", "data": [described]}

    @app.get("/v1/models/{name:path}", **of_models | {"responses": {**of_models["responses"], 404: _ERRORS[404]}})
    async def one_model(name: str) -> dict[str, Any]:
        """Describe a model."""
        if name != model_id:
            raise no_such_model(model_id)
        return described

    @app.get("/healthz", response_class=PlainTextResponse, responses={503: {"description": "It does not serve."}})
    async def health() -> Response:
        """Say whether the server serves, and if not, why."""
        problem = read_problem()
        return PlainTextResponse(f"{problem or 'ok'}\n", 503 if problem else 200, {"cache-control": "no-store"})

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Return what is counted, for Prometheus."""
        return Response(render_metrics(), media_type=METRICS_TYPE, headers={"cache-control": "no-store"})

    read_policy = (lambda: policy) if isinstance(policy, AccessPolicy) else policy
    rules = AccessRules(API, config.max_concurrent_rpcs, config.max_message_bytes)
    return AccessMiddleware(
        app, rules, read_policy, refuse, read_problem, lambda path, status: count_request(endpoint_of(path), status)
    )


def endpoint_of(path: str) -> str:
    """Return the endpoint under which a request is counted; "other" for paths that are none."""
    endpoint = "/v1/models" if path.startswith("/v1/models/") else path
    return endpoint if endpoint in _ENDPOINTS else "other"


def refuse(error: Exception) -> Response:
    """Return the answer to a request that failed before or behind its endpoint."""
    return error_of(error).response()


async def _refuse(_: Request, error: Exception) -> Response:
    return refuse(error)


_HANDLERS: Any = dict.fromkeys((SpeculantError, RequestValidationError, HTTPException, Exception), _refuse)
