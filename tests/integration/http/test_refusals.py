"""What is refused over HTTP, how it is said, and that nothing else is said."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import openai
import pytest

from speculant_graph.config import GenerationConfig
from speculant_verifier.decoder import SpeculativeDecoder
from speculant_verifier.engine.sequence import OUT_OF_MEMORY
from speculant_verifier.http.errors import error_of as error_of_failure
from speculant_verifier.requests import failure_of
from support.http_api import MODEL, Api, serving, tiny_decoder

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
COMPLETION = {"model": MODEL, "prompt": "Hello", "max_tokens": 2}
OPTIONS = {"type": "function", "function": {"name": "f"}}
NAMED = {"type": "function", "function": {"name": "g"}}


def schema_of(schema: dict[str, Any]) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}


def error_of(response: httpx2.Response, status: int = 400) -> dict[str, Any]:
    """Check the shape of a refusal and return what it says."""
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
        ("chat/completions", {"response_format": {"type": "xml"}}, "response_format.type", "'json_object'"),
        ("chat/completions", {"response_format": {"type": "json_schema"}}, "response_format.json_schema", "lacks"),
        ("chat/completions", schema_of({"type": "nonsense"}), "response_format", "can't be kept to"),
        ("chat/completions", {"structured_outputs": {"regex": "("}}, "structured_outputs", "can't be kept to"),
        ("completions", {"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs", "one of"),
        ("chat/completions", schema_of({}) | {"structured_outputs": {"regex": "a"}}, "structured_outputs", "one of"),
        ("chat/completions", {"tools": [OPTIONS, OPTIONS]}, "tools", "one name"),
        ("chat/completions", {"tool_choice": "required"}, "tool_choice", "no tools"),
        ("chat/completions", {"tools": [OPTIONS], "tool_choice": NAMED}, "tool_choice", "'g', which is not among"),
        ("completions", {"suffix": "x"}, "suffix", "not supported"),
        ("chat/completions", {"max_token": 3, "temprature": 1}, "max_token", "'max_token', 'temprature'"),
        ("chat/completions", {"speculant": {"rule": "follow", "speed": 1}}, "speculant.speed", "not supported here"),
        ("chat/completions", {"speculant": {"rule": "guess"}}, "speculant.rule", "'follow'"),
        ("chat/completions", {"stream_options": {"include_usage": True}}, "stream_options", "stream = true"),
        ("chat/completions", {"temperature": 1e-6}, "temperature", "at least 0.001"),
        ("chat/completions", {"temperature": "1"}, "temperature", "temperature must be a number"),
        ("chat/completions", {"max_tokens": 0}, "max_tokens", "max_tokens must be greater than or equal to 1"),
        ("chat/completions", {"max_completion_tokens": 3}, "max_tokens", "differ"),
        ("chat/completions", {"min_tokens": 3}, "min_tokens", "more than max_tokens"),
        ("chat/completions", {"top_logprobs": 3}, "top_logprobs", "logprobs = true"),
        ("completions", {"logprobs": 1}, "logprobs", "not supported here"),
        ("chat/completions", {"stop": ""}, "stop", "1 to 1024"),
        ("chat/completions", {"logit_bias": {"x": 1}}, "logit_bias", "token ids"),
        ("chat/completions", {"logit_bias": {"999": 1}}, "logit_bias", "0..257"),
        ("completions", {"prompt": ["a"] * 9, "n": 2}, "n", "18 samples"),
        ("completions", {"prompt": ""}, "prompt", "empty"),
        ("completions", {"prompt": [1, "a"]}, "prompt", "give text"),
        ("completions", {"prompt": None}, "prompt", "missing"),
        ("chat/completions", {"messages": []}, "messages", "messages must have at least 1"),
        ("chat/completions", {"\n" * 99: 1}, "?" * 64, "not supported here"),
        ("chat/completions", {"messages": [{"role": "robot", "content": "x"}]}, "messages.0.role", "'user'"),
        ("chat/completions", {"messages": [{"role": "tool", "content": "x"}]}, "messages.0.tool_call_id", "missing"),
        (
            "chat/completions",
            {"messages": [{"role": "user", "content": "x", "tool_call_id": "y"}]},
            "messages.0.tool_call_id",
            "leave it out",
        ),
        (
            "chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages.0.content",
            "list of parts",
        ),
        (
            "chat/completions",
            {"messages": [{"role": "assistant", "content": "x", "tool_calls": [{"id": "a"}]}]},
            "messages.0.tool_calls.0.function",
            "missing",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(api: Api, path: str, body: dict[str, Any], param: str, says: str) -> None:
    error = error_of(api.post(path, (CHAT if path.startswith("chat") else COMPLETION) | body))
    assert error["param"] == param
    assert says in error["message"]


def test_other_models_are_not_found(api: Api) -> None:
    client = api.client()
    assert client.completions.create(**COMPLETION | {"model": api.decoder.target.name}).choices  # as --model names it
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-4", messages=[{"role": "user", "content": "x"}])
    assert caught.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4")
    assert client.models.retrieve(MODEL).id == MODEL
    [model] = client.models.list().data
    assert (model.id, model.owned_by, model.max_model_len) == (MODEL, "speculant-graph", 512)


def test_prompts_that_are_too_long(api: Api, decoder: SpeculativeDecoder) -> None:
    for path, body in (
        ("completions", COMPLETION | {"prompt": "x" * 512}),
        ("completions", COMPLETION | {"prompt": ["x", "y" * 600]}),
        ("chat/completions", CHAT | {"messages": [{"role": "user", "content": "x" * 600}]}),
    ):
        error = error_of(api.post(path, body))
        assert error["code"] == "context_length_exceeded"
        assert "512" in error["message"]
    longest = api.post("completions", COMPLETION | {"prompt": "x" * 511, "max_tokens": 5}).json()
    assert longest["choices"][0]["finish_reason"] == "length"
    [result] = decoder.generate(["x" * 511], GenerationConfig(max_tokens=5))
    assert longest["choices"][0]["text"] == result.text


def test_bodies_that_are_no_json(api: Api) -> None:
    for content, says in (
        (b"", "the body is no JSON object"),
        (b"{", "it breaks at character 2"),
        (b'{"model": "m",}', "it breaks at character 15"),
        (b"[]", "the body is no JSON object"),
        (b"null", "the body is"),
        (b"[" * 100_000, "the body can't be read"),
        (b"\xff\xfe", "the body"),
        (b'{"model": "\xff"}', "send a JSON object in UTF-8"),
        (b'{"n": ' + b"9" * 5_000 + b"}", "the body can't be read"),
    ):
        for more in ("", "; charset=utf-8"):
            headers = {"content-type": f"application/json{more}"}
            assert says in error_of(api.http.post("/v1/completions", content=content, headers=headers))["message"]
    body = json.dumps(COMPLETION).encode()
    for given in ("", "text/plain", "multipart/form-data; boundary=x"):
        headers = {"content-type": given} if given else {}
        error = error_of(api.http.post("/v1/completions", content=body, headers=headers))
        assert "as application/json" in error["message"]
    kind = {"content-type": "application/json"}
    for field, param in ((b'"temperature": NaN', "temperature"), (b'"logit_bias": {"7": -Infinity}', "logit_bias"),
                         (b'"temperature": 1e999', "temperature")):  # fmt: skip
        text = body[:-1] + b", " + field + b"}"
        assert error_of(api.http.post("/v1/completions", content=text, headers=kind))["param"] == param
    lonely = {"prompt": "\ud800"}
    assert error_of(api.post("completions", None, content=json.dumps(COMPLETION | lonely), headers=kind))["param"]
    talk = CHAT | {"messages": [{"role": "user", "content": "\ud800"}]}
    error_of(api.post("chat/completions", None, content=json.dumps(talk), headers=kind))


def test_paths_and_methods(api: Api) -> None:
    error_of(api.get("/v1/embeddings"), 404)
    error_of(api.get("/docs"), 404)
    error_of(api.post("embeddings", {}), 404)
    error_of(api.get("/v1/completions"), 405)
    error_of(api.http.delete(f"/v1/models/{MODEL}"), 405)


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


def test_a_model_without_a_template_does_not_chat() -> None:
    with tiny_decoder("llama", template="") as decoder, serving(decoder, model_id=MODEL) as api:
        assert "no chat template" in error_of(api.post("chat/completions", CHAT))["message"]
        assert api.post("completions", COMPLETION).status_code == 200


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


@pytest.mark.parametrize(
    ("message", "is_refused", "status"),
    [
        ("the prompt has 3 tokens; shorten it", True, 400),
        (OUT_OF_MEMORY, False, 503),
        ("the model's logits hold NaN in /srv/x", False, 500),
    ],
)
def test_every_error_of_a_sample_has_a_status(message: str, is_refused: bool, status: int) -> None:
    error = error_of_failure(failure_of(message, is_client_error=is_refused))
    assert error.status == status
    assert "/srv" not in json.dumps(error.content)
