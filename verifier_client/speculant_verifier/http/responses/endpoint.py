"""The endpoint /v1/responses, and responses that later ones go on from."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from fastapi.responses import Response

from speculant_graph.serving.access import Principal
from speculant_verifier.http.builders import ServedModel
from speculant_verifier.http.errors import ApiError, error_of
from speculant_verifier.http.mapping import RequestMapping
from speculant_verifier.http.responses.builder import ResponsesBuilder
from speculant_verifier.http.responses.schemas import ChosenFunction, Item, ResponsesRequest
from speculant_verifier.http.responses.translation import as_chat, as_error
from speculant_verifier.http.streaming import Decoding, GenerationResponse

_MAX_CHARACTERS = 64_000_000
"""Of all items that are kept, as JSON; the oldest go."""


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """What a response was about."""

    items: tuple[Item, ...]
    """All of its conversation, its own output included."""
    size: int
    """Characters."""


class ResponseStore:
    """Responses in memory, the latest ones, each for its tenant only. Belongs to the event loop."""

    def __init__(self, max_characters: int = _MAX_CHARACTERS) -> None:
        """Begin empty.

        Args:
            max_characters: bound of what is kept.
        """
        self._max, self._size = max_characters, 0
        self._kept: OrderedDict[tuple[str, str], StoredResponse] = OrderedDict()

    def put(self, tenant: str, response_id: str, items: list[Item]) -> None:
        """Keep a response that has ended.

        Args:
            tenant: whose it is.
            response_id: what later requests name it by.
            items: its conversation.
        """
        size = sum(len(item.model_dump_json(exclude_unset=True)) for item in items)
        self._kept[tenant, response_id] = StoredResponse(tuple(items), size)
        self._size += size
        while self._size > self._max:
            _, oldest = self._kept.popitem(last=False)
            self._size -= oldest.size

    def get(self, tenant: str, response_id: str) -> StoredResponse:
        """Return a response.

        Raises:
            ApiError: there is none, or no longer.
        """
        if (stored := self._kept.get((tenant, response_id))) is None:
            raise ApiError(
                400,
                "previous_response_id is not known, or no longer: responses are kept in memory, those with store = "
                "true; send the whole conversation as input",
                param="previous_response_id",
                code="previous_response_not_found",
            )
        return stored


class Responses:
    """Answers requests of the Responses API, as the chats that they are."""

    def __init__(self, mapping: RequestMapping, decoding: Decoding, model: ServedModel) -> None:
        """Take what turns chats into work, what does it, and the model."""
        self._mapping, self._decoding, self._model = mapping, decoding, model
        self._store = ResponseStore()

    async def respond(self, request: ResponsesRequest, principal: Principal) -> Response:
        """Answer a conversation, item by item.

        Raises:
            ApiError: which field is wrong, or what it may not.
        """
        response_id = f"resp_{secrets.token_hex(24)}"
        try:
            session = self._mapping.session(request.speculant, principal)
            tenant = "" if session is None else session.tenant or ""
            before = None
            if request.previous_response_id is not None:
                before = self._store.get(tenant, request.previous_response_id)
            items = [*(before.items if before is not None else ()), *request.input]
            context = await self._mapping.chat(as_chat(request, items), principal)
        except Exception as error:
            raise as_error(error_of(error)) from error

        def keep(output: list[Item]) -> None:
            if request.store:
                self._store.put(tenant, response_id, [*items, *output])

        builder = ResponsesBuilder(context, self._model, response_id, _repeated(request), keep)
        return GenerationResponse(self._decoding, context, builder, is_stream=request.stream)


def _repeated(request: ResponsesRequest) -> dict[str, Any]:
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
