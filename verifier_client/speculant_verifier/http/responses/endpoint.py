"""The endpoint /v1/responses."""

from __future__ import annotations

import secrets
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response

from speculant_graph.serving.http_gate import PRINCIPAL
from speculant_verifier.decoder import SpeculativeDecoder
from speculant_verifier.harmony import HarmonyTokens
from speculant_verifier.http.answering import Decoding, GenerationResponse
from speculant_verifier.http.errors import ApiError
from speculant_verifier.http.logprobs import TokenTexts
from speculant_verifier.http.preparing import Preparation
from speculant_verifier.http.responses.answers import ResponseAnswer
from speculant_verifier.http.responses.schemas import ChosenFunction, Item, ResponsesRequest
from speculant_verifier.http.responses.shape import ResponsesShape
from speculant_verifier.http.responses.stored import ResponseStore
from speculant_verifier.http.responses.translation import as_chat, as_error


def add_responses_endpoint(
    app: FastAPI,
    decoder: SpeculativeDecoder,
    preparation: Preparation,
    decoding: Decoding,
    texts: TokenTexts,
    harmony: HarmonyTokens | None,
    options: dict[str, Any],
) -> None:
    """Let an application answer responses.

    Args:
        app: the application.
        decoder: decodes.
        preparation: turns chats into work.
        decoding: does it.
        texts: of single tokens.
        harmony: splits what the model writes into channels.
        options: of the endpoint: who may call it, what it answers beside responses.
    """
    store = ResponseStore()
    answers = {**options["responses"], 200: {**options["responses"][200], "model": ResponseAnswer}}

    @app.post("/v1/responses", dependencies=options["dependencies"], responses=answers)
    async def respond(request: ResponsesRequest, connection: Request) -> Response:
        """Answer a conversation, item by item."""
        decoding.require_room(1)
        principal = connection.scope[PRINCIPAL]
        response_id = f"resp_{secrets.token_hex(24)}"
        try:
            tenant = preparation.tenant_of(request.speculant, principal)
            before = None
            if request.previous_response_id is not None:
                before = store.get(tenant, request.previous_response_id)
            items = [*(before.items if before is not None else ()), *request.input]
            conversation = request.prompt_cache_key or (response_id if before is None else before.conversation)
            prepared = await preparation.chat(as_chat(request, items, conversation), principal)
        except ApiError as error:
            raise as_error(error) from error

        def keep(output: list[Item]) -> None:
            if request.store:
                store.put(tenant, response_id, [*items, *output], conversation)

        shape = ResponsesShape(
            prepared, decoder.target, texts, harmony, response_id=response_id, said=_said(request), on_end=keep
        )
        return GenerationResponse(decoding, prepared, shape, is_stream=request.stream)


def _said(request: ResponsesRequest) -> dict[str, Any]:
    """Return what the answer repeats of a request, with what stands for fields that it lacks."""
    text = {} if request.text is None else request.text.model_dump(exclude_none=True, by_alias=True)
    choice = request.tool_choice
    return {
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "metadata": request.metadata or {},
        "parallel_tool_calls": request.parallel_tool_calls,
        "previous_response_id": request.previous_response_id,
        "reasoning": {} if request.reasoning is None else request.reasoning.model_dump(exclude_none=True),
        "store": request.store,
        "text": {"format": {"type": "text"}} | text,
        "tool_choice": choice.model_dump() if isinstance(choice, ChosenFunction) else choice or "auto",
        "tools": [tool.model_dump(exclude_none=True) for tool in request.tools or ()],
        "truncation": "disabled",
    }
