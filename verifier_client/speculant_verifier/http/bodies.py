"""Bodies of requests: JSON as its standard has it, and nothing that could mean two things."""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from speculant_verifier.http.errors import ApiError, printable_name

_MOST_LOOKED_AT = 1000
"""Values among which the place of a problem is looked for; farther away it is told without."""


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


@dataclass(frozen=True, slots=True)
class _Problem:
    """Stands in a body where something is wrong."""

    text: str


def parse(body: bytes) -> Any:
    """Return what a body says.

    Raises:
        ApiError: a number that JSON does not have, or a name that stands twice in an object, of which Python's module
            would take the last. Or it can't be read for its depth, its length of numbers, its encoding.
        json.JSONDecodeError: it is no JSON.
    """
    problems: list[_Problem] = []

    def note_constant(name: str) -> _Problem:
        problems.append(_Problem(f"JSON has no {name}; correct it, or leave it out"))
        return problems[-1]

    def note_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        values = dict(pairs)
        if len(values) < len(pairs):
            problems.append(_Problem("stands twice in one object; send it once"))
            values[Counter(name for name, _ in pairs).most_common(1)[0][0]] = problems[-1]
        return values

    try:
        content = json.loads(body, parse_constant=note_constant, object_pairs_hook=note_repetition)
    except json.JSONDecodeError:
        raise
    except UnicodeDecodeError as error:
        raise ApiError(400, "the body is no UTF-8; encode it so") from error
    except RecursionError as error:
        raise ApiError(400, "the body is nested too deeply; send a flatter one") from error
    except ValueError as error:  # Python's guard against endless digits
        raise ApiError(400, "the body has a number of thousands of digits; send a shorter one") from error
    if problems:
        place, problem = next(_problems(content), ("", problems[0]))
        raise ApiError(400, f"{place or 'the body'}: {problem.text}", param=place or None)
    return content


def _problems(content: Any) -> Iterator[tuple[str, _Problem]]:
    """Yield where problems stand, and these, as far as they are found soon: others must not wait for a wrong body."""
    ahead = deque([("", content)])
    for _ in range(_MOST_LOOKED_AT):
        if not ahead:
            return
        place, value = ahead.popleft()
        if isinstance(value, _Problem):
            yield place, value
        inside: Iterable[tuple[object, Any]] = ()
        if isinstance(value, dict):
            inside = value.items()
        elif isinstance(value, list):
            inside = enumerate(value)
        dot, room = place and ".", _MOST_LOOKED_AT - len(ahead)
        ahead += [(f"{place}{dot}{printable_name(str(name))}", each) for name, each in islice(inside, room)]
