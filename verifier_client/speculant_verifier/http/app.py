"""The application: endpoints, and the document that describes them.

FastAPI checks bodies and writes the OpenAPI document. Its pages at /docs are off, as browsers would have to load them
from elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import PurePath
from typing import Any

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import PlainTextResponse, Response
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from speculant_graph.config import GenerationConfig, ServiceConfig
from speculant_graph.serving.access import AccessPolicy
from speculant_graph.serving.http import METRICS_TYPE
from speculant_graph.serving.http_gate import PRINCIPAL, Gate, GateRules
from speculant_graph.version import VERSION
from speculant_verifier.decoder import SpeculativeDecoder
from speculant_verifier.harmony import HarmonyTokens
from speculant_verifier.http.adapters import add_adapter_endpoints
from speculant_verifier.http.answering import Decoding, GenerationResponse
from speculant_verifier.http.answers import ChatCompletion, Completion, ErrorAnswer, Model, ModelList
from speculant_verifier.http.bodies import JsonRoute
from speculant_verifier.http.errors import ApiError, internal, no_such_model, of_content_type, of_validation
from speculant_verifier.http.gate import API, endpoint_of, refuse
from speculant_verifier.http.logprobs import TokenTexts
from speculant_verifier.http.preparing import Preparation
from speculant_verifier.http.responses.endpoint import add_responses_endpoint
from speculant_verifier.http.schemas import ChatRequest, CompletionRequest
from speculant_verifier.http.shapes import ChatShape, CompletionShape
from speculant_verifier.load import Load

_ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorAnswer, "description": "A field is wrong, unknown or not supported."},
    401: {"model": ErrorAnswer, "description": "The key is missing or unknown."},
    503: {"model": ErrorAnswer, "description": "The server is starting or going away."},
}
_GENERATION_ERRORS: dict[int | str, dict[str, Any]] = {
    **_ERRORS,
    403: {"model": ErrorAnswer, "description": "The tenant is not the client's."},
    404: {"model": ErrorAnswer, "description": "There is no such model."},
    408: {"model": ErrorAnswer, "description": "The body did not come in time."},
    413: {"model": ErrorAnswer, "description": "The body is too large."},
    429: {"model": ErrorAnswer, "description": "Too many requests wait."},
}
_EVENT: dict[str, Any] = {
    "type": "object",
    "description": "With stream = true: a chunk, and at last [DONE]. An object with the field error ends it early.",
    "properties": {"data": {"type": "string", "contentMediaType": "application/json"}},
    "required": ["data"],
}
_STREAM: dict[str, Any] = {"content": {"text/event-stream": {"schema": _EVENT}}}


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
        policy: who may come in, or what says so at every request.
        defaults: settings that requests do not name.
        load: counts what is under way, here and elsewhere.
        read_problem: why nothing is served, one line; empty if it is. Called in the event loop.
        render_metrics: text for Prometheus. Called in the event loop.
        count_request: told of every request to the API that is over: its endpoint and the status. Called in the event
            loop.

    Raises:
        ConfigError: the model was given without its tokenizer.
    """
    model_id = config.model_id or PurePath(decoder.target.name).name
    preparation = Preparation(decoder, config, defaults, model_id)
    decoding = Decoding(decoder, load)
    texts, harmony = TokenTexts(decoder.target), HarmonyTokens.of(decoder)
    model = Model(
        id=model_id,
        object="model",
        created=int(time.time()),
        owned_by="speculant-graph",
        max_model_len=decoder.target.max_length,
    )
    app = FastAPI(title="speculant-graph", version=VERSION, docs_url=None, redoc_url=None, exception_handlers=_HANDLERS)
    app.router.route_class = JsonRoute
    with_key = [Depends(HTTPBearer(auto_error=False, description="Where the server has an access file."))]

    @app.post(
        "/v1/chat/completions",
        dependencies=with_key,
        responses={200: {"model": ChatCompletion, **_STREAM}, **_GENERATION_ERRORS},
    )
    async def chat(request: ChatRequest, connection: Request) -> Response:
        """Answer a conversation."""
        decoding.require_room(1)
        prepared = await preparation.chat(request, connection.scope[PRINCIPAL])
        shape = ChatShape(prepared.job, decoder.target, texts, harmony)
        return GenerationResponse(decoding, prepared, shape, is_stream=request.stream)

    @app.post(
        "/v1/completions",
        dependencies=with_key,
        responses={200: {"model": Completion, **_STREAM}, **_GENERATION_ERRORS},
    )
    async def complete(request: CompletionRequest, connection: Request) -> Response:
        """Continue texts."""
        decoding.require_room(1)
        prepared = await preparation.completion(request, connection.scope[PRINCIPAL])
        shape = CompletionShape(prepared.job, decoder.target, texts, None)
        return GenerationResponse(decoding, prepared, shape, is_stream=request.stream)

    generation = {"dependencies": with_key, "responses": {200: _STREAM, **_GENERATION_ERRORS}}
    add_responses_endpoint(app, decoder, preparation, decoding, texts, harmony, generation)

    @app.get("/v1/models", dependencies=with_key, responses=_ERRORS)
    async def models() -> ModelList:
        """List the models."""
        return ModelList(object="list", data=[model])

    @app.get("/v1/models/{name:path}", dependencies=with_key, responses={**_ERRORS, 404: _GENERATION_ERRORS[404]})
    async def one_model(name: str) -> Model:
        """Describe a model."""
        if name != model_id:
            raise no_such_model(model_id)
        return model

    add_adapter_endpoints(app, decoder, with_key, _ERRORS)

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
    rules = GateRules(API, config.max_concurrent_rpcs, config.max_message_bytes)
    return Gate(
        app, rules, read_policy, refuse, read_problem, lambda path, status: count_request(endpoint_of(path), status)
    )


async def _refuse(request: Request, error: Exception) -> Response:
    if isinstance(error, ApiError):
        return error.response()
    if isinstance(error, RequestValidationError):
        return (of_content_type(request.headers.get("content-type", "")) or of_validation(error.errors())).response()
    if isinstance(error, HTTPException):
        return _of_framework(error)
    return internal().response()  # the gate, which gets it next, tells the log


def _of_framework(error: HTTPException) -> Response:
    messages = {
        404: "there is nothing at this path; /openapi.json lists what there is",
        405: "this path does not take the method; /openapi.json says which",
    }
    message = messages.get(error.status_code, "the body can't be read; send a JSON object")
    response = ApiError(error.status_code, message).response()
    response.headers.update(error.headers or {})
    return response


_HANDLERS: Any = dict.fromkeys((ApiError, RequestValidationError, HTTPException, Exception), _refuse)
