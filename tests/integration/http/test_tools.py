"""Tools on a real engine: with given outputs, and with a required call but free arguments."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from support.http_api import Api
from support.tool_models import ANSWERS, ARGUMENTS, MESSAGES, TOOLS


def streamed(api: Api, fields: dict[str, Any]) -> tuple[str, list[list[str]], str]:
    """Return content, calls (id, name, arguments) and finish reason of a stream."""
    content, calls, reason = "", [], ""
    for chunk in api.client().chat.completions.create(**fields, stream=True):
        [choice] = chunk.choices
        content += choice.delta.content or ""
        for call in choice.delta.tool_calls or ():
            if call.id:
                assert call.index == len(calls)
                assert call.type == "function"
                calls.append([call.id, call.function.name, ""])
            calls[call.index][2] += call.function.arguments or ""
        reason = choice.finish_reason or reason
    return content, calls, reason


def test_calls_whole_and_streamed(served: tuple[str, Api], made_to_write: Callable[[str], dict[str, Any]]) -> None:
    name, api = served
    fields = made_to_write(ANSWERS[name])
    [choice] = api.client().chat.completions.create(**fields).choices
    assert choice.finish_reason == "tool_calls"
    [call] = choice.message.tool_calls
    assert call.id.startswith("call_")
    assert (call.type, call.function.name, call.function.arguments) == ("function", "get_weather", ARGUMENTS)
    assert choice.message.content == ("See." if name == "hermes" else None)
    content, calls, reason = streamed(api, fields)
    assert content == (choice.message.content or "")
    assert [each[1:] for each in calls] == [["get_weather", ARGUMENTS]]
    assert reason == "tool_calls"
    without = api.client().chat.completions.create(**fields | {"tool_choice": "none"}).choices[0]
    assert without.finish_reason == "stop"
    assert not without.message.tool_calls


def test_a_call_that_is_cut_off(served: tuple[str, Api], made_to_write: Callable[[str], dict[str, Any]]) -> None:
    name, api = served
    fields = made_to_write(ANSWERS[name])
    [choice] = api.client().chat.completions.create(**fields | {"max_tokens": fields["max_tokens"] - 4}).choices
    assert choice.finish_reason == "length"
    [choice] = api.client().chat.completions.create(**fields | {"stop": "days"}).choices
    assert choice.finish_reason == "stop"
    cut = '{"unit": "C", "'
    assert choice.message.tool_calls[0].function.arguments == cut
    assert streamed(api, fields | {"stop": "days"})[2] == "stop"


@pytest.mark.parametrize(("body", "arguments"), [("", "{}"), ('{"unit": "C', '{"unit": "C'), ("{", "{")])
def test_a_call_that_the_model_ended_is_one(
    served: tuple[str, Api], made_to_write: Callable[[str], dict[str, Any]], body: str, arguments: str
) -> None:
    name, api = served
    if name == "hermes":
        arguments = {"": "{}", "{": "{"}.get(body, '{"unit": [}')
        written = f', "arguments": {arguments}' if body else ""
        fields = made_to_write(f'<tool_call>{{"name": "get_weather"{written}{"" if body else "}"}</tool_call>')
    else:
        fields = made_to_write(f"<|channel|>commentary to=get_weather code<|message|>{body}<|call|>")
    [choice] = api.client().chat.completions.create(**fields).choices
    assert choice.finish_reason == "tool_calls"
    [call] = choice.message.tool_calls
    assert (call.function.name, call.function.arguments) == ("get_weather", arguments)
    assert not choice.message.content
    assert streamed(api, fields)[2] == "tool_calls"


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
@pytest.mark.parametrize("settings", [{}, {"temperature": 1.0, "seed": 4}])
def test_calls_that_are_demanded(served: tuple[str, Api], choice: Any, settings: dict[str, Any]) -> None:
    """The model has random weights, so only the grammar makes it write a call."""
    name, api = served
    fields = {"model": "m", "messages": MESSAGES, "tools": TOOLS, "tool_choice": choice, "max_tokens": 600, **settings}
    if name == "harmony":  # its reasoning has no limit
        ids = api.decoder.target.tokenizer.convert_tokens_to_ids(["<|end|>"])
        fields["logit_bias"] = {str(ids[0]): 100}
    fields["parallel_tool_calls"] = False
    answer = api.client().chat.completions.create(**fields)
    [found] = answer.choices
    assert found.finish_reason == "tool_calls", found
    [call] = found.message.tool_calls
    arguments = json.loads(call.function.arguments)
    if call.function.name == "get_weather":
        assert arguments["unit"] in ("C", "F")
        assert 0 <= arguments["days"] <= 9
    else:
        assert (choice, call.function.name, arguments) == ("required", "stop-it", {})
    plain = api.client().chat.completions.create(
        **fields | {"seed": answer.speculant["seed"]}, extra_body={"speculant": {"speculation": "off"}}
    )
    assert plain.choices[0].message.tool_calls[0].function == call.function
    assert answer.speculant["steps"] < plain.speculant["steps"], "what the form forces is drafted"
    assert streamed(api, fields | {"seed": answer.speculant["seed"]})[1][0][1:] == [
        call.function.name,
        call.function.arguments,
    ]


@pytest.mark.parametrize("half", ["\n", '\n{"name": "', '\n{"name": "get_weather", "argum'])
def test_half_a_call_that_a_limit_cuts_off_is_no_content(
    served: tuple[str, Api], made_to_write: Callable[[str], dict[str, Any]], half: str
) -> None:
    name, api = served
    if name == "harmony":
        pytest.skip("its headers are never content")
    answer = ANSWERS[name]
    written = answer[: answer.index("<tool_call>") + len("<tool_call>")] + half
    fields = made_to_write(answer) | {"max_tokens": len(api.decoder.target.encode(written))}
    [choice] = api.client().chat.completions.create(**fields).choices
    assert (choice.message.content, choice.message.tool_calls, choice.finish_reason) == ("See.", None, "length")
    chunks = list(api.client().chat.completions.create(**fields, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "See."
    assert chunks[-1].choices[0].finish_reason == "length"


def test_predictions_are_drafted(served: tuple[str, Api], made_to_write: Callable[[str], dict[str, Any]]) -> None:
    name, api = served
    text = "Nobody has said so in this conversation before."
    written = f"<|channel|>final<|message|>{text}<|return|>" if name == "harmony" else text
    fields = made_to_write(written) | {"tools": [], "extra_body": {"speculant": {"speculation": "on"}}}
    plain = api.client().chat.completions.create(**fields)
    for content in (text, [{"type": "text", "text": text}]):
        prediction = {"type": "content", "content": content}
        answer = api.client().chat.completions.create(**fields, prediction=prediction)
        assert answer.choices[0].message.content == plain.choices[0].message.content == text
        assert answer.speculant["steps"] < plain.speculant["steps"]
        details, num_predicted = answer.usage.completion_tokens_details, len(api.decoder.target.encode(text))
        assert details.accepted_prediction_tokens + details.rejected_prediction_tokens == num_predicted
        assert details.accepted_prediction_tokens > 0.5 * num_predicted


def test_a_demanded_call_takes_no_other_form(served: tuple[str, Api]) -> None:
    _, api = served
    body = {"model": "m", "messages": MESSAGES, "tools": TOOLS, "tool_choice": "required"}
    for form in ({"response_format": {"type": "json_object"}}, {"structured_outputs": {"regex": "a"}}):
        answer = api.post("chat/completions", body | form)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "tool_choice"


def test_templates_without_tools(api: Api) -> None:
    body = {"model": "tiny-gpt-oss", "messages": MESSAGES, "tools": TOOLS, "max_tokens": 2}
    error = api.post("chat/completions", body).json()["error"]
    assert (error["param"], error["code"]) == ("tools", "unsupported_parameter")
    assert api.post("chat/completions", body | {"tool_choice": "none"}).status_code == 200


def test_reasoning_comes_apart_from_the_answer(
    served: tuple[str, Api], made_to_write: Callable[[str], dict[str, Any]]
) -> None:
    name, api = served
    head = "<|channel|>analysis<|message|>A 🦊?<|end|><|start|>assistant<|channel|>final<|message|>"
    fields = made_to_write(f"{head}Fünf. Yes<|return|>" if name == "harmony" else "Fünf. Yes") | {"tools": []}
    thought = "A 🦊?" if name == "harmony" else None
    for stop, said in ((None, "Fünf. Yes"), (". Y", "Fünf")):
        [choice] = api.client().chat.completions.create(**fields, stop=stop).choices
        assert (getattr(choice.message, "reasoning_content", None), choice.message.content) == (thought, said)
        assert choice.finish_reason == "stop"
        deltas = [
            chunk.choices[0].delta for chunk in api.client().chat.completions.create(**fields, stop=stop, stream=True)
        ]
        assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas) == (thought or "")
        assert "".join(delta.content or "" for delta in deltas) == said


def test_the_second_session_finds_instructions_and_tools_read(served: tuple[str, Api]) -> None:
    _, api = served
    system = {"role": "system", "content": "Use the tools that you have, and say nothing else at all."}
    left = []
    for question in ("Rain?", "How warm is it?", "Any wind?"):
        messages = [system, {"role": "user", "content": question}]
        body = {"model": "m", "messages": messages, "tools": TOOLS, "max_tokens": 2}
        usage = api.post("chat/completions", body).json()["usage"]
        left.append(usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"])
    assert max(left[1:]) < 40 < 60 < left[0], "later sessions read the question and the beginning of the answer"
