"""Bodies of requests: JSON as its standard has it, and nothing that could mean two things."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

from fastapi import Request, Response
from fastapi.routing import APIRoute

from speculant_verifier.http.errors import ApiError, printable_name


class JsonRoute(APIRoute):
    """An endpoint whose requests are read by :func:`parse`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return what answers a request."""
        answer = super().get_route_handler()

        async def handle(request: Request) -> Response:
            return await answer(_JsonRequest(request.scope, request.receive))

        return handle


class _JsonRequest(Request):
    async def json(self) -> Any:
        return parse(await self.body())


def parse(body: bytes) -> Any:
    """Return what a body says.

    Raises:
        ApiError: a number that JSON does not have, or a name that stands twice in an object, of which Python's module
            would take the last.
        ValueError: it is no JSON.
    """
    return json.loads(body, parse_constant=_refuse_constant, object_pairs_hook=_unambiguous)


def _refuse_constant(name: str) -> NoReturn:
    raise ApiError(400, f"the body is no JSON, which has no {name}; send a number, or leave the field out")


def _unambiguous(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        name = printable_name(Counter(name for name, _ in pairs).most_common(1)[0][0])
        raise ApiError(400, f"'{name}' stands twice in one object of the body; send it once", param=name)
    return values
