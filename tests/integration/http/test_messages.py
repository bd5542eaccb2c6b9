"""Anthropic's Messages API: requests become the equivalent chat, and responses have the API's format."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from speculant_verifier.decoder import SpeculativeDecoder
from speculant_verifier.http.messages import as_chat
from speculant_verifier.http.messages_schemas import MessagesRequest
from support.access import entry, policy
from support.http_api import MODEL, Api, serving
from support.tool_models import ARGUMENTS, WEATHER

WEATHER_TOOL = {
    "name": "get_weather",
    "description": "Weather of a place.",
    "input_schema": WEATHER["function"]["parameters"],
}
CALL_ID = "toolu_1"
HISTORY: list[dict[str, Any]] = [
    {"role": "user", "content": "Rain?"},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "Hm.", "signature": "unsigned"},
            {"type": "text", "text": "Let me see."},
            {"type": "tool_use", "id": CALL_ID, "name": "get_weather", "input": {"unit": "C", "days": 3}},
        ],
    },
    {
        "role": "user",
        "content": [
            {
                "type": "tool_result",
                "tool_use_id": CALL_ID,
                "content": [{"type": "text", "text": "dry"}, {"type": "image", "source": {"type": "base64"}}],
            },
            {"type": "text", "text": "And then?", "cache_control": {"type": "ephemeral"}},
        ],
    },
]


def body(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "max_tokens": 4, "messages": [{"role": "user", "content": "Rain?"}], **fields}


def events_of(text: str) -> list[dict[str, Any]]:
    """Return the events of a stream; check that every event's name equals its type."""
    found = []
    for event in text.split("\n\n"):
        lines = [line for line in event.splitlines() if not line.startswith(":")]
        if lines:
            name, data = lines
            found.append(json.loads(data.removeprefix("data: ")))
            assert name == f"event: {found[-1]['type']}"
    return found


def put_together(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the message that a stream's events add up to."""
    first, *rest = events
    assert (first["type"], rest[-1]["type"]) == ("message_start", "message_stop")
    message: dict[str, Any] = first["message"]
    texts: list[str] = []
    for event in rest:
        if event["type"] == "content_block_start":
            assert event["index"] == len(message["content"])
            message["content"].append(event["content_block"])
            texts.append("")
        elif event["type"] == "content_block_delta":
            kind = event["delta"]["type"]
            block = message["content"][-1]
            name = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}.get(kind)
            if name is None:
                texts[-1] += event["delta"]["partial_json"]
                block["input"] = texts[-1]
            else:
                block[name] += event["delta"][name]
        elif event["type"] == "content_block_stop" and message["content"][-1]["type"] == "tool_use":
            message["content"][-1]["input"] = json.loads(texts[-1])
        elif event["type"] == "message_delta":
            message |= event["delta"] | {"usage": event["usage"]}
    return message


def test_a_conversation_becomes_the_chat_that_it_means() -> None:
    system = [
        {"type": "text", "text": "x-anthropic-billing-header: cch=1;"},
        {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
    ]
    more: dict[str, Any] = {"output_config": {"effort": "max"}, "stop_sequences": ["END"], "metadata": {"user_id": "x"}}
    tools = [{**WEATHER_TOOL, "cache_control": None}, {"type": "web_search_20250305", "name": "web_search"}]
    choice = {"type": "any", "disable_parallel_tool_use": True}
    fields = body(messages=HISTORY, system=system, tools=tools, tool_choice=choice, top_k=5, **more)
    chat = as_chat(MessagesRequest(**fields), takes_effort=True).model_dump(exclude_unset=True, exclude_none=True)
    assert [message["role"] for message in chat["messages"]] == ["system", "user", "assistant", "tool", "user"]
    told, _, answer, result, latest = chat["messages"]
    assert told["content"] == "Be brief."
    assert (answer["reasoning_content"], answer["content"]) == ("Hm.", "Let me see.")
    [call] = answer["tool_calls"]
    assert (call["id"], json.loads(call["function"]["arguments"])) == (CALL_ID, {"unit": "C", "days": 3})
    assert (result["tool_call_id"], result["content"]) == (CALL_ID, "dry\n[image]")
    assert latest["content"] == "And then?"
    assert [tool["function"]["name"] for tool in chat["tools"]] == ["get_weather"]
    assert (chat["tool_choice"], chat["parallel_tool_calls"]) == ("required", False)
    assert (chat["reasoning_effort"], chat["stop"], chat["top_k"]) == ("high", ["END"], 5)


@pytest.mark.parametrize(
    ("block", "text"),
    [
        ({"type": "search_result", "source": "a", "title": "T", "content": [{"type": "text", "text": "z"}]}, "T\nz"),
        ({"type": "document", "source": {"type": "text", "data": "z"}, "title": "T"}, "T\nz"),
        ({"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "z"}]}}, "z"),
        ({"type": "document", "source": {"type": "base64", "data": "eA=="}}, "[document]"),
        ({"type": "image", "source": {"type": "url", "url": "https://a.example"}}, "[image]"),
    ],
)  # fmt: skip
def test_blocks_without_text_of_their_own_stay_in_sight(block: dict[str, Any], text: str) -> None:
    """This holds in instructions, in earlier messages and in tool results."""
    result = {"type": "tool_result", "tool_use_id": CALL_ID, "content": [block]}
    messages = [{"role": "user", "content": [block]}, HISTORY[1], {"role": "user", "content": [result]}]
    fields = body(messages=messages, system=[block])
    chat = as_chat(MessagesRequest(**fields), takes_effort=True)
    assert [message.content for message in chat.messages if message.role != "assistant"] == [text] * 3


@pytest.mark.parametrize(
    ("blocks", "place"),
    [
        ([{"type": "tool_use", "id": "z", "name": "f", "input": "x"}], "messages.1.content.0.input must be an object"),
        ([{"type": "tool_use", "id": "z", "name": "f"}], "messages.1.content.0.input is missing"),
        ([{"type": "tool_result", "content": "x"}], "messages.1.content.0.tool_use_id is missing"),
        ([{"type": "text", "text": "a"}, {"type": "text"}], "messages.1.content.1.text is missing"),
        ([{"type": "thinking"}], "messages.1.content.0.thinking is missing"),
        (["a"], "messages.1.content.0 must be an object"),
        (3, "messages.1.content: give text"),
        (
            [{"type": "tool_result", "tool_use_id": "z", "content": [{"type": "text"}]}],
            "messages.1.content.0.content.0.text is missing",
        ),
        ([{"type": "tool_result", "tool_use_id": "z", "content": 3}], "messages.1.content.0.content: give text"),
    ],
)
def test_the_place_of_what_is_wrong_in_a_block_is_told(api: Api, blocks: Any, place: str) -> None:
    messages = [*HISTORY[:1], {"role": "user", "content": blocks}]
    fields = {"model": MODEL, "messages": messages}
    for path, more in (("messages", {"max_tokens": 4}), ("messages/count_tokens", {})):
        answer = api.post(path, fields | more)
        assert answer.status_code == 400
        assert place in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("choice", "named"),
    [
        ("any", '{"type": "any"}'),
        ("auto", '{"type": "auto"}'),
        ({"type": "required"}, "tool_choice.type must be 'auto', 'any'"),
        ({"type": "tool"}, "tool_choice.name is missing"),
    ],
)
def test_the_choice_of_a_tool_is_told_in_its_form(api: Api, choice: Any, named: str) -> None:
    error = api.post("messages", body(tools=[WEATHER_TOOL], tool_choice=choice)).json()["error"]
    assert error["type"] == "invalid_request_error"
    assert named in error["message"]
    assert "required'" not in error["message"]


@pytest.mark.parametrize("is_shown", [False, True], ids=["no thoughts", "thoughts"])
def test_calls(
    served: tuple[str, Api], made_to_write: Callable[[str], dict[str, Any]], answer: str, is_shown: bool
) -> None:
    name, api = served
    limit = made_to_write(answer)["max_tokens"]
    thinking = {"thinking": {"type": "enabled", "budget_tokens": 1024}} if is_shown else {}
    fields = body(model="m", max_tokens=limit, tools=[WEATHER_TOOL], **thinking)
    whole = api.post("messages", fields).json()
    called = whole["content"][-1]
    assert (called["type"], called["name"], called["input"]) == ("tool_use", "get_weather", json.loads(ARGUMENTS))
    assert whole["stop_reason"] == "tool_use"
    kinds = {"harmony": ["thinking"] * is_shown, "hermes": ["text"]}[name]
    assert [block["type"] for block in whole["content"]] == [*kinds, "tool_use"]

    streamed = put_together(events_of(api.post("messages", fields | {"stream": True}).text))
    for message in (whole, streamed):
        message["content"][-1].pop("id")
    assert streamed["content"] == whole["content"]
    assert streamed["stop_reason"] == "tool_use"
    counts = [usage["input_tokens"] + usage["cache_read_input_tokens"] for usage in (whole["usage"], streamed["usage"])]
    counted = api.post("messages/count_tokens", {name: fields[name] for name in ("model", "messages", "tools")})
    assert counts == [counted.json()["input_tokens"]] * 2


@pytest.fixture
def answer(served: tuple[str, Api]) -> str:
    from support.tool_models import ANSWERS

    return ANSWERS[served[0]]


def test_text_is_that_of_a_chat_and_says_why_it_ended(api: Api) -> None:
    fields = body(max_tokens=24, temperature=0, system="Be brief.")
    whole = api.post("messages", fields).json()
    messages = [{"role": "system", "content": "Be brief."}, *fields["messages"]]
    chat = api.post("chat/completions", {"model": MODEL, "messages": messages, "max_tokens": 24, "temperature": 0})
    text = chat.json()["choices"][0]["message"]["content"]
    assert [block["text"] for block in whole["content"]] == [text]
    assert whole["stop_reason"] == "max_tokens"
    assert put_together(events_of(api.post("messages", fields | {"stream": True}).text))["content"] == whole["content"]
    stopped = api.post("messages", fields | {"stop_sequences": [text[3:5]]}).json()
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", text[3:5])
    assert stopped["content"][0]["text"] == text[: text.index(text[3:5])]


@pytest.mark.parametrize(
    ("fields", "status", "kind", "named"),
    [
        ({"model": "other"}, 404, "not_found_error", MODEL),
        ({"messages": []}, 400, "invalid_request_error", "messages"),
        ({"mcp_servers": [{"type": "url"}]}, 400, "invalid_request_error", "mcp_servers"),
        ({"stop": ["END"]}, 400, "invalid_request_error", "stop"),
        ({"stop_sequence": ["END"]}, 400, "invalid_request_error", "stop_sequence"),
        ({"max_tokens": None}, 400, "invalid_request_error", "max_tokens"),
        ({"temperature": 1.5}, 400, "invalid_request_error", "temperature"),
        ({"messages": [{"role": "assistant", "content": "It"}]}, 400, "invalid_request_error", "prefilled"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, 400, "invalid_request_error", "image"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {}}]}]},
         400, "invalid_request_error", "tool_use"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": 3}]}]},
         400, "invalid_request_error", "content"),
        ({"tools": [{"name": "f", "input_schema": {"type": "string"}}]}, 400, "invalid_request_error", "input_schema"),
        ({"tools": [{"input_schema": {}}]}, 400, "invalid_request_error", "name"),
        ({"tool_choice": {"type": "tool"}}, 400, "invalid_request_error", "name"),
        ({"stop_sequences": [""]}, 400, "invalid_request_error", "stop_sequences"),
        ({"messages": [{"role": "user", "content": "x" * 2_000}]}, 400, "invalid_request_error", "shorten"),
    ],
)  # fmt: skip
def test_refusals_are_in_its_form(api: Api, fields: dict[str, Any], status: int, kind: str, named: str) -> None:
    answer = api.post("messages", body(**fields))
    assert answer.status_code == status
    found = answer.json()
    assert (found["type"], found["error"]["type"]) == ("error", kind)
    assert named in found["error"]["message"]
    assert found["request_id"] == answer.headers["x-request-id"]


def test_other_failures_are_in_its_form_too(api: Api) -> None:
    answers = {
        404: api.post("messages/other", body()),
        405: api.get("/v1/messages"),
        400: api.http.post("/v1/messages", content=b"{", headers={"content-type": "application/json"}),
    }
    for status, answer in answers.items():
        assert answer.status_code == status
        assert answer.json()["error"]["type"] in ("invalid_request_error", "not_found_error", "api_error")


def test_keys_come_as_its_clients_send_them(decoder: SpeculativeDecoder, tmp_path: Path) -> None:
    with serving(decoder, policy(tmp_path / "access.toml", entry("ann", "key"))) as api:
        statuses = [
            api.post("messages", body(), headers=headers).status_code
            for headers in ({"x-api-key": "key"}, {"authorization": "Bearer key"}, {"x-api-key": "other"}, {})
        ]
        refused = api.post("messages", body()).json()
        elsewhere = api.post("chat/completions", body(), headers={"x-api-key": "key"}).status_code
    assert statuses == [200, 200, 401, 401]
    assert refused["error"]["type"] == "authentication_error"
    assert elsewhere == 401, "other endpoints take keys as before"


def test_counts_more_than_the_context_holds(api: Api) -> None:
    fields = {"model": MODEL, "messages": [{"role": "user", "content": "x" * 2_000}]}
    assert api.post("messages/count_tokens", fields).json()["input_tokens"] > 2_000
    refused = api.post("messages/count_tokens", fields | {"model": "other"})
    assert (refused.status_code, refused.json()["error"]["type"]) == (404, "not_found_error")
