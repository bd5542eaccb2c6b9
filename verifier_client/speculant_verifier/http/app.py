"""The ASGI application: its endpoints and its OpenAPI document.

FastAPI validates request bodies and generates the OpenAPI document. FastAPI's pages at /docs are disabled, because
browsers would have to load their scripts from another site.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import PlainTextResponse, Response
from loguru import logger
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from speculant_graph.config import GenerationConfig, ServiceConfig
from speculant_graph.errors import ANSWERS, SpeculantError, UnavailableError
from speculant_graph.serving.access import REQUEST_ID_KEY, AccessPolicy
from speculant_graph.serving.http import METRICS_TYPE, PRINCIPAL, AccessMiddleware, AccessRules
from speculant_graph.version import VERSION
from speculant_verifier.decoder import SpeculativeDecoder
from speculant_verifier.http.builders import (
    AnswerBuilder,
    ChatBuilder,
    CompletionBuilder,
    ServedModel,
    to_json,
)
from speculant_verifier.http.errors import anthropic_fields, error_of, no_such_model, openai_fields
from speculant_verifier.http.json_route import JsonRoute
from speculant_verifier.http.mapping import RequestMapping
from speculant_verifier.http.messages import count_tokens, map_messages, shows_reasoning
from speculant_verifier.http.messages_answers import MessagesBuilder
from speculant_verifier.http.messages_schemas import MessagesRequest, TokenCountRequest
from speculant_verifier.http.responses import ResponsesBuilder, map_responses
from speculant_verifier.http.responses_schemas import ResponsesRequest
from speculant_verifier.http.responses_store import ResponseStore, Seal
from speculant_verifier.http.schemas import ChatRequest, CompletionRequest
from speculant_verifier.http.token_texts import TokenTexts
from speculant_verifier.results import StepEvent
from speculant_verifier.service.requests import Load, paced_events_of

_ANTHROPIC = "/v1/messages"
API = ("/v1/",)
"""Path prefixes to which access control applies."""
MAX_REQUESTS = 1_024
"""Maximum number of concurrent requests over HTTP; the same limit applies separately to gRPC."""
MAX_BODY_BYTES = 4 << 20
"""Maximum size of an HTTP body or gRPC message, in bytes. A text of 131,072 tokens takes about half a megabyte."""
_ENDPOINTS = (
    "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/messages/count_tokens", "/v1/models",
    "/v1/responses",
)  # fmt: skip
_CORS_METHODS = ("GET", "POST", "DELETE", "OPTIONS")
_CORS_EXPOSED = (REQUEST_ID_KEY, "retry-after", "www-authenticate")
"""Response headers that web pages from other origins may read."""
_RETRY_AFTER_S = "1"
_PAUSE_S = 3.0
"""Number of idle seconds after which a stream gets a comment, so that no proxy closes the stream."""
_COMMENT = b": nothing yet\n\n"

_JSON_HEADERS = [(b"content-type", b"application/json")]
_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # proxies must not buffer events
]


def create_app(
    decoder: SpeculativeDecoder,
    config: ServiceConfig,
    read_policy: Callable[[], AccessPolicy],
    defaults: GenerationConfig,
    *,
    load: Load,
    read_problem: Callable[[], UnavailableError | None],
    render_metrics: Callable[[], bytes],
    count_request: Callable[[str, int], None] = lambda endpoint, status: None,
) -> ASGIApp:
    """Return the OpenAI-compatible API as an ASGI application.

    Args:
        decoder: the decoder; the caller closes it after the server.
        config: model name and limits.
        read_policy: returns the access policy; called for every request.
        defaults: values for settings that a request leaves out.
        load: counts and limits the sequences of HTTP and gRPC requests.
        read_problem: returns why the server can't serve; None if it can. The function is called in the event loop.
        render_metrics: returns metrics as text for Prometheus. The function is called in the event loop.
        count_request: called with endpoint and status when a request to the API ends. The function is called in the
            event loop.

    Raises:
        ConfigError: the model was loaded without its tokenizer.
    """
    model_id = config.model_id or PurePath(decoder.target.name).name
    model = ServedModel(model_id, decoder.target, TokenTexts(decoder.target), decoder.chat_format)
    mapping = RequestMapping(decoder, load, defaults, model_id)
    store, seal = ResponseStore(), Seal()

    def respond(builder: AnswerBuilder, *, is_stream: bool) -> Response:
        context = builder.context
        events = paced_events_of(
            decoder, load, context.prompts, context.config, context.session, _PAUSE_S, context.shared_length
        )
        return GenerationResponse(events, builder, is_stream=is_stream)

    described = {
        "id": model_id,
        "object": "model",
        "created": int(time.time()),
        "owned_by": "speculant-graph",
        "max_model_len": decoder.target.max_length,
    }
    app = FastAPI(
        title="speculant-graph",
        version=VERSION,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        exception_handlers=_HANDLERS,
    )
    app.router.route_class = JsonRoute

    @app.post("/v1/chat/completions")
    async def chat(request: ChatRequest, connection: Request) -> Response:
        """Answer a conversation."""
        context = await mapping.chat(request, connection.scope[PRINCIPAL])
        return respond(ChatBuilder(context, model), is_stream=request.stream)

    @app.post("/v1/completions")
    async def complete(request: CompletionRequest, connection: Request) -> Response:
        """Continue texts."""
        context = await mapping.completion(request, connection.scope[PRINCIPAL])
        return respond(CompletionBuilder(context, replace(model, chat_format=None)), is_stream=request.stream)

    @app.post("/v1/responses")
    async def respond_by_items(request: ResponsesRequest, connection: Request) -> Response:
        """Answer a conversation, as OpenAI's Responses API does."""
        context, conversation = await map_responses(mapping, request, connection.scope[PRINCIPAL], store, seal)
        return respond(ResponsesBuilder(context, model, request, conversation), is_stream=request.stream)

    @app.get("/v1/responses/{response_id}")
    async def one_response(response_id: str, connection: Request) -> dict[str, Any]:
        """Return a stored response."""
        return store.response(connection.scope[PRINCIPAL], response_id).answer

    @app.delete("/v1/responses/{response_id}")
    async def forget_response(response_id: str, connection: Request) -> dict[str, Any]:
        """Delete a stored response."""
        store.delete(connection.scope[PRINCIPAL], response_id)
        return {"id": response_id, "object": "response", "deleted": True}

    @app.post("/v1/messages")
    async def respond_by_blocks(request: MessagesRequest, connection: Request) -> Response:
        """Answer a conversation, as Anthropic's Messages API does."""
        context = await map_messages(
            mapping, request, connection.scope[PRINCIPAL], takes_effort=decoder.chat_format.takes_effort
        )
        builder = MessagesBuilder(context, model, shows_reasoning=shows_reasoning(request))
        return respond(builder, is_stream=bool(request.stream))

    @app.post("/v1/messages/count_tokens")
    async def count(request: TokenCountRequest) -> dict[str, int]:
        """Count the tokens of a conversation's prompt."""
        return {"input_tokens": await count_tokens(mapping, request, takes_effort=decoder.chat_format.takes_effort)}

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        """List the models."""
        return {"object": "list", "data": [described]}

    @app.get("/v1/models/{name:path}")
    async def one_model(name: str) -> dict[str, Any]:
        """Describe a model."""
        if name != model_id:
            raise no_such_model(model_id)
        return described

    @app.get("/healthz", response_class=PlainTextResponse)
    async def health() -> Response:
        """Report whether the server can serve requests and, if not, the reason."""
        problem = read_problem()
        text, status = (problem.message, 503) if problem else ("ok", 200)
        return PlainTextResponse(f"{text}\n", status, {"cache-control": "no-store"})

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Return metrics for Prometheus."""
        return Response(render_metrics(), media_type=METRICS_TYPE, headers={"cache-control": "no-store"})

    rules = AccessRules(API, MAX_REQUESTS, MAX_BODY_BYTES)
    access = AccessMiddleware(
        app, rules, read_policy, refuse, read_problem, lambda path, status: count_request(endpoint_of(path), status)
    )

    def guarded(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        # Not async: another coroutine would be resumed for every event of an answer.
        is_theirs = scope["type"] == "http" and is_anthropic(scope)
        return access(with_key(scope) if is_theirs else scope, receive, send)

    if not config.cors_origins:
        return guarded
    # Outside the access check: preflight requests have no key, and pages must be able to read refusals.
    return CORSMiddleware(
        guarded,
        allow_origins=config.cors_origins,
        allow_methods=_CORS_METHODS,
        allow_headers=("*",),
        allow_private_network=True,
        expose_headers=_CORS_EXPOSED,
    )


def endpoint_of(path: str) -> str:
    """Return the endpoint under which a request is counted; "other" if the path belongs to no endpoint."""
    endpoint = next((known for known in _ENDPOINTS if path.startswith(f"{known}/")), path)
    return endpoint if endpoint in _ENDPOINTS else "other"


def is_anthropic(scope: Scope) -> bool:
    """Tell whether a request is for Anthropic's API."""
    return f"{scope['path']}/".startswith(f"{_ANTHROPIC}/")


def with_key(scope: Scope) -> Scope:
    """Return the request with its key in ``authorization``; Anthropic's clients send the key in ``x-api-key``."""
    headers = dict(scope["headers"])
    if b"authorization" in headers or not (key := headers.get(b"x-api-key")):
        return scope
    return {**scope, "headers": [*scope["headers"], (b"authorization", b"Bearer " + key)]}


def refuse(error: Exception) -> Response:
    """Return the response to a request that failed outside its endpoint."""
    return ErrorResponse(error_of(error))


async def _refuse(_: Request, error: Exception) -> Response:
    return refuse(error)


class ErrorResponse(Response):
    """An error response, in the format of the API that the client called."""

    def __init__(self, error: SpeculantError) -> None:
        """Make a response.

        Args:
            error: the error, with the client's field names.
        """
        super().__init__(status_code=ANSWERS[error.kind].http)
        self._error = error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the error."""
        headers = {}
        if self.status_code == 401:
            headers["www-authenticate"] = "Bearer"
        if self.status_code in (429, 503):
            headers["retry-after"] = _RETRY_AFTER_S
        if is_anthropic(scope):
            fields = anthropic_fields(self._error)
            if REQUEST_ID_KEY in scope:
                fields["request_id"] = scope[REQUEST_ID_KEY]
        else:
            fields = openai_fields(self._error)
        await Response(to_json(fields), self.status_code, headers, media_type="application/json")(scope, receive, send)


class GenerationResponse(Response):
    """Sends an answer as a whole or as a stream, and stops when the client disconnects.

    This class replaces FastAPI's streaming response for two reasons. First, this class sends the status only after the
    request is admitted. A refused request therefore gets an error status instead of a broken stream. Second, this class
    watches the connection even while it sends nothing. A request's row in the batch is therefore freed within a step
    after its client disconnects. A slow client delays no other client, because its unread events wait in memory. The
    unread events of a request take at most the memory of its answer.
    """

    def __init__(
        self, events: AsyncGenerator[StepEvent | None, None], builder: AnswerBuilder, *, is_stream: bool
    ) -> None:
        """Create a response; decoding starts when the response is sent.

        Args:
            events: the decoder's events; reading them starts decoding. An event is None when the request is admitted,
                and after every idle period.
            builder: builds the answer from the events.
            is_stream: whether to stream the answer, event by event.
        """
        super().__init__()
        self._events, self._builder, self._is_stream = events, builder, is_stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer.

        Raises:
            SpeculantError: the request failed before anything was sent.
        """
        del scope
        answering = asyncio.create_task(self._stream(send) if self._is_stream else self._send_whole(send))
        leaving = asyncio.create_task(_wait_disconnect(receive))
        try:
            await asyncio.wait((answering, leaving), return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                await answering
        finally:
            for task in (answering, leaving):
                task.cancel()
            await asyncio.gather(answering, leaving, return_exceptions=True)

    async def _send_whole(self, send: Send) -> None:
        async with aclosing(self._events) as events:
            async for event in events:
                if event is not None:
                    self._builder.take(event)
        body = await asyncio.to_thread(lambda: to_json(self._builder.whole()))
        length = (b"content-length", str(len(body)).encode())
        await send({"type": "http.response.start", "status": 200, "headers": [*_JSON_HEADERS, length]})
        await send({"type": "http.response.body", "body": body})

    async def _stream(self, send: Send) -> None:
        has_begun = False
        try:
            async with aclosing(self._events) as events:
                async for event in events:
                    if not has_begun:
                        await send({"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS})
                        has_begun = True
                        await send(_event(self._builder.begun() or _COMMENT))
                    elif event is None:
                        await send(_event(_COMMENT))
                    if event is not None and (frames := self._builder.sent(event)):
                        await send(_event(frames))
        except Exception as error:
            if not has_begun:
                raise
            found = error_of(error)
            if found.kind == "internal":
                logger.opt(exception=error).error("a stream failed")
            await send(_event(self._builder.failure(found)))
        await send(_event(self._builder.ending, more_body=False))


def _event(frames: bytes, *, more_body: bool = True) -> Message:
    return {"type": "http.response.body", "body": frames, "more_body": more_body}


async def _wait_disconnect(receive: Callable[[], Awaitable[Message]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


_HANDLERS: Any = dict.fromkeys((SpeculantError, RequestValidationError, HTTPException, Exception), _refuse)
