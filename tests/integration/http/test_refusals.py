"""Refusals over HTTP: their messages, and no leaks of internals."""

from __future__ import annotations

import socket
from typing import Any

import httpx2
import openai
import pytest

from speculant_graph.config import DraftConfig, GenerationConfig
from speculant_verifier.decoder import SpeculativeDecoder
from speculant_verifier.http.messages_schemas import MessagesRequest
from speculant_verifier.http.responses_schemas import ResponsesRequest
from speculant_verifier.http.schemas import ChatRequest, CompletionRequest, Schema, SpeculantOptions
from support.http_api import MODEL, PATIENCE_S, Api, serving, tiny_decoder

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
COMPLETION = {"model": MODEL, "prompt": "Hello", "max_tokens": 2}
BODIES: dict[str, dict[str, Any]] = {
    "chat/completions": CHAT,
    "completions": COMPLETION,
    "responses": {"model": MODEL, "input": "Hello", "max_output_tokens": 2},
    "messages": CHAT,
}
SCHEMAS: dict[str, type[Schema]] = {
    "chat/completions": ChatRequest,
    "completions": CompletionRequest,
    "responses": ResponsesRequest,
    "messages": MessagesRequest,
}


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


def error_of(response: httpx2.Response, status: int = 400) -> dict[str, Any]:
    """Check the format of a refusal; return its error object."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"]
    [(key, error)] = response.json().items()
    assert key == "error"
    assert list(error) == ["message", "type", "param", "code"]
    assert error["message"].isprintable()
    for leak in ("Traceback", "site-packages", "pydantic", "/tmp", "jinja", "Error("):
        assert leak not in response.text
    return error


@pytest.mark.parametrize(
    ("path", "body", "param", "says"),
    [
        ("chat/completions", {"presence_penalty": 2.5}, "presence_penalty", "2"),
        ("chat/completions", {"response_format": {"type": "json_schema"}}, "response_format.json_schema", "missing"),
        ("completions", {"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs", "one of"),
        ("chat/completions", {"structured_outputs": {"regex": "("}}, "structured_outputs", "can't be enforced"),
        ("completions", {"suffix": "x"}, "suffix", "not supported"),
        (
            "chat/completions",
            {"max_token": 3, "temprature": 1},
            "max_token",
            "'temprature'; write 'max_tokens'",
        ),
        (
            "chat/completions",
            {"functions": [], "guided_json": {}},
            "functions",
            "'guided_json'; leave it out",
        ),
        ("chat/completions", {"max_output_tokens": 3}, "max_output_tokens", "not supported"),
        ("completions", {"k": 3}, "k", "not supported"),
        (
            "chat/completions",
            {"chat_template_kwargs": {"tokenize": False}},
            "chat_template_kwargs.tokenize",
            "variable",
        ),
        ("chat/completions", {"speculant": {"rule": "follow", "speed": 1}}, "speculant.speed", "not supported here"),
        (
            "chat/completions",
            {"speculant": {"node_budget": 5}},
            "speculant.node_budget",
            "draft.k of 4; give at most 4",
        ),
        ("completions", {"speculant": {"max_depth": 25}}, "speculant.max_depth", "draft.max_depth of 24; give at most"),
        ("completions", {"speculant": {"max_depth": 0}}, "speculant.max_depth", "greater than or equal to 1"),
        ("responses", {"speculant": {"draft_temperature": 0.5}}, "speculant.draft_temperature", "only sampling reads"),
        ("chat/completions", {"speculant": {"draft_n": 3}}, "speculant.draft_n", "only nasd reads it; leave it out"),
        (
            "chat/completions",
            {"speculant": {"strategy": "tree"}},
            "speculant.strategy",
            "setting draft.strategy decides",
        ),
        ("completions", {"speculant": {"k": 3}}, "speculant.k", "write it as node_budget"),
        ("completions", {"speculant": {"n": 3}}, "speculant.n", "draft_n if the server's strategy is nasd"),
        ("responses", {"input": 5}, "input", "must be a text or a list"),
        ("chat/completions", {"structured_outputs": {"json": 5}}, "structured_outputs.json", "an object or text"),
        ("chat/completions", {"stop": 5}, "stop", "give a text or a list"),
        ("completions", {"max_depth": 3}, "max_depth", "put it into the object speculant"),
        ("completions", {"speculation": "on"}, "speculation", "put it into the object speculant"),
        ("chat/completions", {"temperature": 1e-6}, "temperature", "at least 0.001"),
        ("chat/completions", {"max_completion_tokens": 3}, "max_tokens", "differ"),
        ("chat/completions", {"min_tokens": 3}, "min_tokens", "more than max_tokens"),
        ("completions", {"prompt": ["a"] * 9, "n": 2}, "n", "18 samples (2 for each of 9 prompts)"),
        ("completions", {"prompt": ["a"] * 100}, "prompt", "100 prompts, but a request may have 16"),
        ("completions", {"prompt": [[1]] * 17}, "prompt", "17 prompts"),
        ("chat/completions", {"n": 17}, "n", "n asks for 17 samples, but"),
        ("completions", {"max_tokens": 508}, "max_tokens", "ask for at most 507"),
        ("completions", {"prompt": ["a", "b" * 10], "max_tokens": 503}, "max_tokens", "ask for at most 502"),
        ("chat/completions", {"max_tokens": None, "max_completion_tokens": 600}, "max_completion_tokens", "at most"),
        ("responses", {"max_output_tokens": 600}, "max_output_tokens", "at most"),
        ("completions", {"prompt": None}, "prompt", "missing"),
        ("chat/completions", {"messages": [{"role": "robot", "content": "x"}]}, "messages.0.role", "'user'"),
        (
            "chat/completions",
            {"messages": [{"role": "user", "content": "x", "tool_call_id": "y"}]},
            "messages.0.tool_call_id",
            "leave it out",
        ),
        (
            "chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages.0.content.0",
            "'image_url' in the latest message",
        ),
        ("chat/completions", {"messages": [{"role": "user", "content": None}]}, "messages.0.content", "null"),
        ("chat/completions", {"messages": [user({"type": "text"})]}, "messages.0.content.0.text", "missing"),
        (
            "chat/completions",
            {"messages": [user({"type": "text", "text": "x"}, {"type": "text", "text": 3})]},
            "messages.0.content.1.text",
            "must be text",
        ),
        ("chat/completions", {"messages": [user("x")]}, "messages.0.content.0", "must be an object"),
        (
            "chat/completions",
            {"messages": [user({"type": "text", "text": "x", "refusals": "y"})]},
            "messages.0.content.0.refusals",
            "not supported here",
        ),
        ("chat/completions", {"messages": [{"role": "user", "content": 3}]}, "messages.0.content", "give text, or a"),
        ("chat/completions", {"prediction": {"type": "content", "content": [{}]}}, "prediction.content.0.type", "null"),
        ("responses", {"input": [user({"type": "input_text"})]}, "input.0.content.0.text", "missing"),
        ("responses", {"input": [{"type": "function_call", "call_id": "x"}]}, "input.0.name", "missing"),
        (
            "responses",
            {"input": [{"type": "function_call_output", "call_id": "x", "output": [{"type": "input_text"}]}]},
            "input.0.output.0.text",
            "missing",
        ),
        ("chat/completions", {"tool_choice": "any"}, "tool_choice", "'required'"),
        ("chat/completions", {"tool_choice": {"type": "function"}}, "tool_choice.function.name", "missing"),
        ("chat/completions", {"tool_choice": {"type": "custom"}}, "tool_choice.custom.name", "missing"),
        (
            "chat/completions",
            {"tool_choice": {"type": "function", "function": {}}},
            "tool_choice.function.name",
            "null",
        ),
        (
            "chat/completions",
            {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"tools": [{"type": "function"}]}}},
            "tool_choice.allowed_tools.tools.0.function.name",
            "missing",
        ),
        ("responses", {"tool_choice": {"type": "function"}}, "tool_choice.name", "missing"),
        (
            "responses",
            {"tool_choice": {"type": "allowed_tools", "tools": [{"type": "function"}]}},
            "tool_choice.tools.0.name",
            "missing",
        ),
        ("chat/completions", {"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice", "'f'"),
        ("chat/completions", {"tools": [{"type": "function"}]}, "tools.0.function", "missing"),
        ("responses", {"tools": [{"type": "function"}]}, "tools.0.name", "missing"),
        ("responses", {"input": [{"type": "item_reference", "id": "x"}]}, "input", "at least 1 item"),
        ("responses", {"input": [{"type": "compaction"}], "instructions": ""}, "input", "at least 1 item"),
        ("responses", {"input": [{"type": "reasoning", "summary": []}]}, "input", "at least 1 item"),
    ],
)
def test_what_is_wrong_is_named(api: Api, path: str, body: dict[str, Any], param: str, says: str) -> None:
    error = error_of(api.post(path, BODIES[path] | body))
    assert error["param"] == param
    assert says in error["message"]


@pytest.mark.parametrize("path", [*BODIES, "models"])
def test_a_slash_at_the_end_makes_another_path(api: Api, path: str) -> None:
    for response in (api.get(f"/v1/{path}/"), api.post(f"{path}/", BODIES.get(path, {}))):
        assert response.status_code in (404, 405), response.text
        assert response.json()["error"]["message"]
    assert api.get(f"/v1/{path}/").status_code == 404


@pytest.mark.parametrize(
    "sent", [b"no HTTP at all\r\n\r\n", b"POST /v1/completions HTTP/1.1\r\nContent-Length: x\r\n\r\n"]
)
def test_what_is_no_http_is_refused_in_plain_text(api: Api, sent: bytes) -> None:
    host, _, port = api.address.rpartition(":")
    with socket.create_connection((host, int(port)), PATIENCE_S) as connection:
        connection.sendall(sent)
        received = b"".join(iter(lambda: connection.recv(4_096), b"")).lower()
    assert received.startswith(b"http/1.1 400 ")
    assert b"text/plain" in received
    assert b"x-request-id" not in received


@pytest.mark.parametrize("path", BODIES)
def test_options_of_speculation_outside_of_their_object_are_refused(api: Api, path: str) -> None:
    def refusal(name: str, value: object = "x") -> str:
        response = api.post(path, BODIES[path] | {name: value})
        assert response.status_code == 400
        error = response.json()["error"]
        if path != "messages":
            assert (error["param"], error["code"]) == (name, "unsupported_parameter")
        return str(error["message"])

    known = SpeculantOptions.model_fields.keys()
    for name in known:
        assert refusal(name) == f"not supported here: '{name}'; put it into the object speculant"
    for name in DraftConfig.model_fields.keys() - known - SCHEMAS[path].model_fields.keys() - {"n"}:
        option = "node_budget" if name == "k" else f"draft_{name}"
        is_option = option in known
        says = f"{option} into the object speculant" if is_option else f"the server's setting draft.{name} decides"
        assert says in refusal(name, 3)
    assert api.post(path, BODIES[path] | {"strategy": None, "rule": None}).status_code == 200


def test_other_models_are_not_found(api: Api) -> None:
    client = api.client()
    assert client.completions.create(**COMPLETION | {"model": api.decoder.target.name}).choices  # as given with --model
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-4", messages=[{"role": "user", "content": "x"}])
    assert caught.value.code == "model_not_found"
    assert client.models.retrieve(MODEL).id == MODEL
    [model] = client.models.list().data
    assert (model.id, model.owned_by, model.max_model_len) == (MODEL, "speculant-graph", 512)


def test_prompts_that_are_too_long(api: Api, decoder: SpeculativeDecoder) -> None:
    for path, body in (
        ("completions", COMPLETION | {"prompt": "x" * 512}),
        ("chat/completions", CHAT | {"messages": [{"role": "user", "content": "x" * 600}]}),
    ):
        error = error_of(api.post(path, body))
        assert error["code"] == "context_length_exceeded"
        assert "512" in error["message"]
    error = error_of(api.post("completions", COMPLETION | {"prompt": "x" * 511, "max_tokens": 5}))
    assert error["code"] == "context_length_exceeded"
    longest = api.post("completions", COMPLETION | {"prompt": "x" * 511, "max_tokens": None}).json()  # default: 16
    assert longest["choices"][0]["finish_reason"] == "length"
    [result] = decoder.generate(["x" * 511], GenerationConfig(max_tokens=5))
    assert longest["choices"][0]["text"] == result.text


def test_a_template_s_own_words_are_told_and_its_accidents_are_not() -> None:
    template = (
        "{% if messages[0]['content'] == 'bad' %}{{ raise_exception('roles must alternate') }}{% endif %}"
        "{% if messages[0]['content'] == 'worse' %}{{ nothing.at.all }}{% endif %}{{ messages[0]['content'] }}"
    )
    with tiny_decoder("llama", template=template) as decoder, serving(decoder, model_id=MODEL) as api:
        said = [
            error_of(api.post("chat/completions", CHAT | {"messages": [{"role": "user", "content": content}]}))
            for content in ("bad", "worse")
        ]
    assert "roles must alternate" in said[0]["message"]
    assert "nothing" not in said[1]["message"]


def test_paths_of_models_stay_here() -> None:
    decoder = tiny_decoder("llama", max_kv_tokens=64)
    decoder.target.name = "/srv/secret/my-model"
    with decoder, serving(decoder) as api:
        assert api.get("/v1/models").json()["data"][0]["id"] == "my-model"
        body = {"model": "my-model", "prompt": "x" * 40, "max_tokens": 100}
        for more in ({}, {"stream": True}):
            response = api.post("completions", body | more)
            assert "max_tokens" in error_of(response)["message"]
            assert "secret" not in response.text
