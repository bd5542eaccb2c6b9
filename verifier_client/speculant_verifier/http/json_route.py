"""Parses request bodies strictly as JSON, before FastAPI validates them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from speculant_graph.errors import ApiError
from speculant_graph.serving.json_body import read_json, require_json_type
from speculant_verifier.http.errors import printable


class JsonRoute(APIRoute):
    """Route of an endpoint that accepts only JSON as its request body."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the function that handles the requests to this route."""
        answer = super().get_route_handler()
        if self.body_field is None:
            return answer

        async def read_and_answer(request: Request) -> Response:
            _require_no_encoding(request.headers.getlist("content-encoding"))
            require_json_type(request.headers.get("content-type", ""))
            read = _ReadRequest(request.scope, request.receive)
            read.content = read_json(await read.body())
            return await answer(read)

        return read_and_answer


def _require_no_encoding(values: Sequence[str]) -> None:
    """Refuse a compressed request body.

    Raises:
        ApiError: the body is compressed.
    """
    encodings = [name for value in values for part in value.split(",") if (name := part.strip().lower())]
    if encoded := [name for name in encodings if name != "identity"]:
        message = f"the header content-encoding is '{printable(encoded[0])}'"
        raise ApiError("wrong_media_type", message, fix="send the body uncompressed, without it")


class _ReadRequest(Request):
    """A request whose JSON body is already parsed."""

    content: Any = None

    async def json(self) -> Any:
        return self.content
