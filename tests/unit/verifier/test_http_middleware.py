"""The middleware counts requests by endpoint and response status."""

from __future__ import annotations

import asyncio

import pytest

from speculant_graph.errors import ApiError
from speculant_graph.serving.access import AccessPolicy
from speculant_graph.serving.http import AccessMiddleware, AccessRules
from speculant_verifier.http.app import API, endpoint_of
from speculant_verifier.http.app import refuse as answer_to


async def answer(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"x"})


async def fail_before(scope, receive, send):
    raise ValueError("a defect")


async def refuse(scope, receive, send):
    raise ApiError("no_such_path", "there is nothing; look elsewhere")


async def fail_within(scope, receive, send):
    await answer(scope, receive, send)
    raise ValueError("a defect")


async def say_nothing(scope, receive, send):
    """Send no response, because the client has disconnected."""


BODY = {"type": "http.request", "body": b"{}", "more_body": False}
LEFT = {"type": "http.disconnect"}


@pytest.mark.parametrize(
    ("app", "path", "message", "expected"),
    [
        (answer, "/v1/completions", BODY, ("/v1/completions", 200)),
        (answer, "/v1/models/a/name/of/theirs", BODY, ("/v1/models", 200)),
        (refuse, "/v1/a-path-of-theirs", BODY, ("other", 404)),
        (fail_before, "/v1/completions", BODY, ("/v1/completions", 500)),
        (fail_within, "/v1/completions", BODY, ("/v1/completions", 200)),
        (say_nothing, "/v1/completions", BODY, ("/v1/completions", 499)),
        (answer, "/v1/completions", LEFT, ("/v1/completions", 499)),
        (answer, "/metrics", BODY, None),
    ],
)
def test_requests_are_counted_once(app, path, message, expected):
    counted, sent = [], []

    async def receive():
        return message

    async def send(message):
        sent.append(message)

    def count(path, status):
        counted.append((endpoint_of(path), status))

    middleware = AccessMiddleware(app, AccessRules(API, 9, 1_024), AccessPolicy, answer_to, count_request=count)
    scope = {"type": "http", "method": "POST", "path": path, "headers": []}
    asyncio.run(middleware(scope, receive, send))
    assert counted == ([expected] if expected else [])
    statuses = [each["status"] for each in sent if each["type"] == "http.response.start"]
    assert len(statuses) <= 1
    if expected and expected[1] != 499:
        assert statuses == [expected[1]]
