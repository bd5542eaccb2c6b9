"""Invalid JSON bodies at every endpoint with a body: each error has its own message, and there is no status 500."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from speculant_verifier.conversation.json_calls import JsonCalls
from speculant_verifier.http.builders import to_json
from support.http_api import MODEL, Api

BODIES: dict[str, dict[str, Any]] = {
    "chat/completions": {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2},
    "completions": {"model": MODEL, "prompt": "Hello", "max_tokens": 2},
    "responses": {"model": MODEL, "input": "Hello", "max_output_tokens": 2},
}
HALF = "\ud800"
JSON = {"content-type": "application/json"}


def refusal(api: Api, path: str, content: bytes, headers: dict[str, str] | None = None) -> tuple[str, str | None]:
    response = api.post(path, None, content=content, headers=JSON if headers is None else headers)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["message"].isprintable()
    return error["message"], error.get("param")  # Anthropic's errors have no param


def endpoints(api: Api) -> list[str]:
    paths = api.get("/openapi.json").json()["paths"]
    return [path.removeprefix("/v1/") for path, methods in paths.items() if "requestBody" in methods.get("post", {})]


def with_field(path: str, text: str) -> bytes:
    """Return a valid body with one more field, given as raw JSON."""
    return (json.dumps(BODIES.get(path, {"model": MODEL}))[:-1] + f", {text}}}").encode()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "the body is empty; send a JSON object"),
        (b" \n", "the body is empty; send a JSON object"),
        (b'{"model": "m",}', "the body is not valid JSON at character 15; correct it there"),
        (b'{"model": "m"', "the body is not valid JSON at character 14; correct it there"),
        (b"[]", "the body is JSON, but not an object; send one"),
        (b"null", "the body is JSON, but not an object; send one"),
        (b"[" * 100_000, "the body has more than 100 levels of nested lists and objects; send fewer"),
        (b'{"a":' * 101 + b"1" + b"}" * 101, "the body has more than 100 levels"),
        (b'{"a": ' + b"[" * 900 + b"]" * 900 + b"}", "the body has more than 100 levels"),
        (b'{"model": "\xff"}', "the body is not valid UTF-8 at byte 12; send JSON in UTF-8"),
        (b'{"model": "\xed\xa0\x80"}', "the body is not valid UTF-8 at byte 12; send JSON in UTF-8"),
        ('{"model": "m"}'.encode("utf-16"), "the body is in UTF-16; send JSON in UTF-8"),
        ('{"model": "m"}'.encode("utf-16-be"), "the body is in UTF-16; send JSON in UTF-8"),
        ('{"model": "m"}'.encode("utf-32"), "the body is in UTF-32; send JSON in UTF-8"),
        (b'{"n": ' + b"9" * 5_000 + b"}", "the body has a whole number of more than 4300 digits; send a smaller one"),
    ],
)
def test_what_can_t_be_read(api: Api, content: bytes, says: str) -> None:
    for path in endpoints(api):
        message, param = refusal(api, path, content)
        assert says in message, path
        assert param is None


@pytest.mark.parametrize(
    ("text", "param", "says"),
    [
        (
            '"user": "a\\ud800"',
            "user",
            "user has half of a surrogate pair (\\ud800), which is not a character; correct it",
        ),
        ('"user": "\\udc00\\ud83d"', "user", "(\\udc00)"),
        ('"metadata": {"a": ["b", {"c": "\\uDFFF"}]}', "metadata.a.1.c", "half of a surrogate pair"),
        (
            '"tools": [{"\\ud800": 1}], "tool_choice": "none"',
            "tools.0.?",
            "half of a surrogate pair (\\ud800) in its name",
        ),
        ('"\\ud83d": 1', "?", "in its name"),
        ('"temperature": NaN', "temperature", "temperature is not a finite number; give one"),
        ('"logit_bias": {"7": -Infinity}', "logit_bias.7", "not a finite number"),
        ('"metadata": {"a": 1e999}', "metadata.a", "not a finite number"),
        ('"user": "a", "user": "b"', "user", "user occurs twice in its object; leave one out"),
        ('"metadata": {"a": {"b": 1, "c": 2, "b": 1}}', "metadata.a.b", "occurs twice"),
    ],
)
def test_what_is_wrong_with_a_value_is_told_by_its_path(api: Api, text: str, param: str, says: str) -> None:
    for path in endpoints(api):
        message, found = refusal(api, path, with_field(path, text))
        assert says in message, path
        assert found == (None if path.startswith("messages") else param)


@pytest.mark.parametrize(
    ("header", "says"),
    [
        ("text/plain", "the header content-type is 'text/plain'; send 'content-type: application/json'"),
        ("application/x-www-form-urlencoded", "'application/x-www-form-urlencoded'"),
        ("", "the header content-type is missing; send"),
        ("application/json; charset=utf-16", "the header content-type declares 'utf-16'; send JSON in UTF-8"),
    ],
)
def test_other_types_of_content_are_refused(api: Api, header: str, says: str) -> None:
    for path in endpoints(api):
        content = json.dumps(BODIES.get(path, {})).encode()
        assert says in refusal(api, path, content, {"content-type": header} if header else {})[0]


@pytest.mark.parametrize("encoding", ["gzip", "br", "identity, Zstd"])
def test_compressed_bodies_are_refused(api: Api, encoding: str) -> None:
    for path in endpoints(api):
        content = gzip.compress(json.dumps(BODIES.get(path, {})).encode())
        response = api.post(path, None, content=content, headers=JSON | {"content-encoding": encoding})
        assert response.status_code == 415
        error = response.json()["error"]
        assert error["type"] == "invalid_request_error"
        assert "content-encoding" in error["message"]
        assert "uncompressed" in error["message"]


def test_what_is_not_compressed_may_say_so(api: Api) -> None:
    content = json.dumps(BODIES["completions"]).encode()
    response = api.post("completions", None, content=content, headers=JSON | {"content-encoding": "identity"})
    assert response.status_code == 200


def test_what_is_good_json_is_taken(api: Api) -> None:
    body = BODIES["completions"] | {"user": "\N{GRINNING FACE}"}
    for content in (json.dumps(body).encode(), json.dumps(body, ensure_ascii=False).encode("utf-8-sig")):
        for kind in ("application/json; charset=UTF-8", "application/vnd.api+json"):
            assert api.post("completions", None, content=content, headers={"content-type": kind}).status_code == 200
    assert api.post("completions", BODIES["completions"] | {"temperature": 10**400}).status_code == 400


def called(arguments: str) -> dict[str, Any]:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}}
    messages = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "done"},
    ]
    return BODIES["chat/completions"] | {"messages": messages}


@pytest.mark.parametrize(
    "arguments",
    ['{"a": "\\ud800"}', '{"\\udfff": 1}', "[" * 100_000, "[" * 900 + "]" * 900, "9" * 5_000, "NaN", '"\\'],
    ids=range(7),
)
def test_a_model_s_own_arguments_can_be_sent_back(api: Api, arguments: str) -> None:
    assert api.post("chat/completions", called(arguments)).status_code == 200


@pytest.mark.parametrize(
    "schema", ['{"enum": ["\\ud800"]}', "[" * 100_000, '{"a":' * 900 + "1" + "}" * 900], ids=range(3)
)
def test_json_in_a_text_is_read_as_carefully(api: Api, schema: str) -> None:
    for path in ("chat/completions", "completions"):
        assert api.post(path, BODIES[path] | {"structured_outputs": {"json": schema}}).status_code in (200, 400)
        assert api.post(path, BODIES[path] | {"structured_outputs": {"grammar": schema}}).status_code in (200, 400)


def test_half_pairs_of_a_model_reach_clients_as_they_were_written() -> None:
    call = '<c>{"name": "f", "arguments": {"a\\ud800": "\\udfff\\ud83d\\ude00"}}</c>'
    [(kind, name), (_, arguments)] = JsonCalls("<c>", "</c>").push([], call, final=True)
    assert (kind, name) == ("name", "f")
    assert arguments == '{"a\\ud800": "\\udfff\\ud83d\\ude00"}'
    sent = to_json({"arguments": arguments, "text": HALF})
    assert json.loads(sent) == {"arguments": arguments, "text": HALF}
