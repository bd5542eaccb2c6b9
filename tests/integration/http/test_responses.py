"""The Responses API on a real engine, with given outputs and with free ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from openai import BadRequestError, OpenAI

from support.http_api import Api
from support.tool_models import ANSWERS, ARGUMENTS, MESSAGES, TOOLS

FLAT = [{"type": "function", **tool["function"]} for tool in TOOLS]


def fields_of(chat: dict[str, Any]) -> dict[str, Any]:
    """Convert the fields of a chat request to those of a response request."""
    fields = {"model": "m", "input": MESSAGES, "max_output_tokens": chat["max_tokens"]}
    return fields | ({"tools": FLAT} if chat["tools"] else {})


def said(name: str, text: str) -> str:
    """Return a model's raw output for a text."""
    if name != "harmony":
        return text
    return f"<|channel|>analysis<|message|>Hm, so.<|end|><|start|>assistant<|channel|>final<|message|>{text}<|return|>"


def events_of(client: OpenAI, fields: dict[str, Any]) -> list[Any]:
    events = list(client.responses.create(**fields, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    return events


def without_ids(item: Any) -> dict[str, Any]:
    return {name: value for name, value in item.model_dump().items() if name not in ("id", "call_id")}


def test_text(served: tuple[str, Api], made_to_write: Callable[[str], dict[str, Any]]) -> None:
    name, api = served
    fields = fields_of(made_to_write(said(name, "Sun tomorrow.")))
    answer = api.client().responses.create(**fields, instructions="Be short.", metadata={"a": "b"})
    assert answer.output_text == "Sun tomorrow."
    assert (answer.status, answer.error) == ("completed", None)
    assert (answer.instructions, answer.metadata) == ("Be short.", {"a": "b"})
    assert [item.type for item in answer.output] == (["reasoning", "message"] if name == "harmony" else ["message"])
    if name == "harmony":
        assert answer.output[0].content[0].text == "Hm, so."
        assert 0 < answer.usage.output_tokens_details.reasoning_tokens < answer.usage.output_tokens
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens
    events = events_of(api.client(), fields)
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "Sun tomorrow."
    started = ["response.created", "response.in_progress", "response.output_item.added"]
    assert [event.type for event in events[:3]] == started
    assert events[-1].type == "response.completed"
    assert [without_ids(item) for item in events[-1].response.output] == [without_ids(item) for item in answer.output]
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert [item.id for item in done] == [item.id for item in events[-1].response.output]


def test_calls(served: tuple[str, Api], made_to_write: Callable[[str], dict[str, Any]]) -> None:
    name, api = served
    fields = fields_of(made_to_write(ANSWERS[name]))
    answer = api.client().responses.create(**fields)
    call = answer.output[-1]
    assert (call.type, call.name, call.arguments) == ("function_call", "get_weather", ARGUMENTS)
    assert call.status == "completed"
    assert call.call_id.startswith("call_")
    events = events_of(api.client(), fields)
    deltas = [event for event in events if event.type == "response.function_call_arguments.delta"]
    assert "".join(event.delta for event in deltas) == ARGUMENTS
    [done] = [event for event in events if event.type == "response.function_call_arguments.done"]
    assert (done.arguments, done.item_id) == (ARGUMENTS, events[-1].response.output[-1].id)
    cut = api.client().responses.create(**fields | {"max_output_tokens": fields["max_output_tokens"] - 4})
    assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert cut.output[-1].status == "incomplete"


def test_a_loop(served: tuple[str, Api], made_to_write: Callable[[str], dict[str, Any]]) -> None:
    """Output items are valid input items, and the model's prompt is the same as in a chat."""
    name, api = served
    client = api.client()
    fields = fields_of(made_to_write(ANSWERS[name]))
    first = client.responses.create(**fields)
    output = {"type": "function_call_output", "call_id": first.output[-1].call_id, "output": "Sunny."}
    made_to_write(said(name, "Sunny."))
    fields["max_output_tokens"] = 200
    items = [item.model_dump(exclude_unset=True) for item in first.output]
    whole = client.responses.create(**fields | {"input": [*MESSAGES, *items, output]}, store=False)
    second = client.responses.create(**fields | {"input": [output]}, previous_response_id=first.id)
    assert whole.output_text == second.output_text == "Sunny."
    assert whole.usage.input_tokens == second.usage.input_tokens > first.usage.input_tokens
    assert second.previous_response_id == first.id
    assert second.usage.input_tokens_details.cached_tokens >= first.usage.input_tokens - 8
    chat = [
        *MESSAGES,
        {
            "role": "assistant",
            "content": "See." if name == "hermes" else None,
            **({"reasoning_content": "Hm."} if name == "harmony" else {}),
            "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "get_weather", "arguments": ARGUMENTS}}
            ],
        },
        {"role": "tool", "tool_call_id": "c", "content": "Sunny."},
    ]
    same = client.chat.completions.create(model="m", messages=chat, tools=TOOLS, max_tokens=200)
    assert same.usage.prompt_tokens == second.usage.input_tokens
    third = client.responses.create(**fields | {"input": "And then?"}, previous_response_id=second.id)
    assert third.usage.input_tokens > second.usage.input_tokens
    for unknown in (whole.id, "resp_none"):
        with pytest.raises(BadRequestError) as caught:
            client.responses.create(**fields, previous_response_id=unknown)
        assert caught.value.code == "previous_response_not_found"


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input"),
        ({"input": [{"type": "function_call_output", "call_id": "x"}]}, "input.0"),
        ({"input": [{"type": "function_call_output", "call_id": "x", "output": "y"}]}, "input.0.call_id"),
        ({"max_completion_tokens": 3}, "max_completion_tokens"),
        ({"stop": "x"}, "stop"),
        ({"tools": [FLAT[0] | {"parameters": {"type": "integer"}}]}, "tools.0.parameters"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"background": True}, "background"),
        ({"model": "other"}, "model"),
    ],
    ids=str,
)
def test_refusals(api: Api, wrong: dict[str, Any], param: str) -> None:
    body = {"model": "tiny-gpt-oss", "input": "Hello", "max_output_tokens": 2}
    answer = api.post("responses", body | wrong)
    assert answer.status_code in (400, 404)
    error = answer.json()["error"]
    assert (error["param"] or "").startswith(param), error
    assert "messages" not in error["message"]
    assert api.post("responses", body).status_code == 200


def test_a_stream_that_fails_in_the_middle(
    served: tuple[str, Api], made_to_write: Callable[[str], dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, api = served
    fields = fields_of(made_to_write(said(name, "Sun tomorrow, and rain after that.")))
    engine = api.decoder.engine
    real, calls = engine._verification.step, []

    def step(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) > 2:
            raise RuntimeError("broken")
        return real(*arguments)

    monkeypatch.setattr(engine._verification, "step", step)
    with api.http.stream("POST", "/v1/responses", json=fields | {"stream": True}) as answer:
        lines = [line for line in answer.iter_lines() if line]
    assert lines[0] == "event: response.created"
    assert lines[-4] == "event: error"
    assert json.loads(lines[-3].removeprefix("data: "))["code"] == "internal_error"
    assert lines[-2] == "event: response.failed"
    failed = json.loads(lines[-1].removeprefix("data: "))["response"]
    assert (failed["status"], failed["error"]["code"]) == ("failed", "internal_error")
