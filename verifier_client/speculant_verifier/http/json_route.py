"""How the API's endpoints read bodies: strictly, before FastAPI looks at them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from speculant_graph.serving.json_body import read_json, require_json_type


class JsonRoute(APIRoute):
    """An endpoint whose body, if it takes one, is JSON."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return what answers requests."""
        answer = super().get_route_handler()
        if self.body_field is None:
            return answer

        async def read_and_answer(request: Request) -> Response:
            require_json_type(request.headers.get("content-type", ""))
            read = _ReadRequest(request.scope, request.receive)
            read.content = read_json(await read.body())
            return await answer(read)

        return read_and_answer


class _ReadRequest(Request):
    """A request whose body was read."""

    content: Any = None

    async def json(self) -> Any:
        return self.content
