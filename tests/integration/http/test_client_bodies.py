"""Bodies as real clients send them: harmless fields are ignored, supported ones work, and there is no status 500."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from loguru import logger

from support.http_api import Api
from support.tool_models import ANSWERS, ARGUMENTS, TOOLS

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Rain?"}], "max_tokens": 300}
RESPONSE: dict[str, Any] = {"model": "m", "input": "Rain?", "max_output_tokens": 300}
OF_RESPONSES = [{"truncation": "auto"}, {"text": {"verbosity": "low"}}, {"reasoning": {"summary": "auto"}}]
FLAT = [{"type": "function", **tool["function"]} for tool in TOOLS]
IMAGE: dict[str, Any] = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
INPUT_IMAGE: dict[str, Any] = {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="}
CALL: dict[str, Any] = {"type": "function_call", "call_id": "c", "name": "stop-it", "arguments": "{}"}
OUTPUT: dict[str, Any] = {"type": "function_call_output", "call_id": "c", "output": "done"}
ASKED: dict[str, Any] = {"role": "user", "content": "Rain?"}


@pytest.fixture
def answered(
    served: tuple[str, Api], made_to_write: Callable[[str], dict[str, Any]]
) -> Callable[[str, dict[str, Any]], dict[str, Any]]:
    """Send a body to an endpoint of a model that writes "Sun."; return the response."""
    name, api = served
    made_to_write("<|channel|>final<|message|>Sun.<|return|>" if name == "harmony" else "Sun.")

    def send(path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = api.post(path, body)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    return send


def said(answer: dict[str, Any]) -> str:
    """Return the text of a response of either endpoint."""
    if "choices" in answer:
        return str(answer["choices"][0]["message"]["content"])
    return "".join(part["text"] for item in answer["output"] if item["type"] == "message" for part in item["content"])


def num_read(answer: dict[str, Any]) -> int:
    usage = answer["usage"]
    return int(usage["prompt_tokens"] if "prompt_tokens" in usage else usage["input_tokens"])


IGNORED: list[dict[str, Any]] = [
    {"client_metadata": {"a": "b"}, "metadata": {"a": "b"}, "store": False},
    {"service_tier": "flex", "safety_identifier": "u", "user": "u"},
    {"prompt_cache_key": "k", "prompt_cache_retention": "24h", "max_tool_calls": 3},
    {"stream_options": {"include_usage": True, "include_obfuscation": False}},
    {"seed": -1, "top_logprobs": 0},
    {"a_field_of_next_year": {"deep": [1, {"er": None}]}},
]


@pytest.mark.parametrize("more", [*IGNORED, {"verbosity": "low"}, {"modalities": ["text"]}], ids=str)
def test_harmless_fields_of_chats(answered: Callable[..., dict[str, Any]], more: dict[str, Any]) -> None:
    plain, answer = answered("chat/completions", CHAT), answered("chat/completions", CHAT | more)
    assert said(answer) == "Sun."
    assert num_read(answer) == num_read(plain)


@pytest.mark.parametrize(
    "more",
    [*IGNORED, {"truncation": "auto"}, {"text": {"verbosity": "low"}}, {"reasoning": {"summary": "auto"}}],
    ids=str,
)
def test_harmless_fields_of_responses(answered: Callable[..., dict[str, Any]], more: dict[str, Any]) -> None:
    plain, answer = answered("responses", RESPONSE), answered("responses", RESPONSE | more)
    assert said(answer) == "Sun."
    assert num_read(answer) == num_read(plain)


def test_what_is_ignored_is_one_line_of_the_log(answered: Callable[..., dict[str, Any]]) -> None:
    lines: list[str] = []
    handler = logger.add(lambda message: lines.append(message.record["message"]), level="DEBUG")
    logger.enable("speculant_verifier")
    try:
        part = {"type": "text", "text": "Rain?", "cache_control": {"type": "ephemeral"}}
        answered("chat/completions", CHAT | {"messages": [{"role": "user", "content": [part]}], "store": True})
        answered("responses", RESPONSE | {"include": ["bogus", "reasoning.encrypted_content"]})
    finally:
        logger.disable("speculant_verifier")
        logger.remove(handler)
    ignored = [line for line in lines if line.startswith("ignored")]
    assert ignored == ["ignored: 'store', 'cache_control'", "ignored: 'include bogus'"]


@pytest.mark.parametrize("served", ["harmony"], indirect=True)
@pytest.mark.parametrize(
    ("given", "same"), [("none", "low"), ("minimal", "low"), ("xhigh", "high"), ("max", "high"), ("medium", "medium")]
)
def test_efforts(answered: Callable[..., dict[str, Any]], given: str, same: str) -> None:
    counts = {
        num_read(answered("chat/completions", CHAT | {"reasoning_effort": given})),
        num_read(answered("chat/completions", CHAT | {"chat_template_kwargs": {"reasoning_effort": given}})),
        num_read(answered("responses", RESPONSE | {"reasoning": {"effort": given}})),
        num_read(answered("chat/completions", CHAT | {"reasoning_effort": same})),
    }
    assert len(counts) == 1


@pytest.mark.parametrize("before", [[], [CALL, OUTPUT | {"output": [INPUT_IMAGE]}]], ids=["message", "output"])
def test_pictures_in_what_is_earlier_are_a_remark(answered: Callable[..., dict[str, Any]], before: Any) -> None:
    shown = {"role": "user", "content": [{"type": "input_text", "text": "Look."}, INPUT_IMAGE]}
    items = [*before, *([] if before else [shown, {"role": "assistant", "content": "I see nothing."}]), ASKED]
    assert said(answered("responses", RESPONSE | {"input": items})) == "Sun."
    shown = {"role": "user", "content": [{"type": "text", "text": "Look."}, IMAGE]}
    messages = [shown, {"role": "assistant", "content": None, "refusal": "I can't see."}, ASKED]
    with_picture = answered("chat/completions", CHAT | {"messages": messages})
    shown["content"] = "Look."
    assert num_read(with_picture) > num_read(answered("chat/completions", CHAT | {"messages": messages}))


def test_pictures_that_are_asked_about_are_refused(served: tuple[str, Api]) -> None:
    for path, body in (
        ("chat/completions", CHAT | {"messages": [{"role": "user", "content": [IMAGE]}]}),
        ("responses", RESPONSE | {"input": [{"role": "user", "content": [INPUT_IMAGE]}]}),
    ):
        answer = served[1].post(path, body)
        assert answer.status_code == 400
        assert "image" in answer.json()["error"]["message"]
        assert answer.json()["error"]["code"] == "unsupported_parameter"


@pytest.mark.parametrize(
    "items",
    [
        [],
        [{"type": "web_search_call", "id": "ws", "status": "completed"}, ASKED],
        [{"type": "item_reference", "id": "msg_of_yesterday"}, ASKED],
        [{"id": "msg_of_yesterday"}, ASKED],
        [{"type": "compaction", "encrypted_content": "x"}, ASKED],
        [{"type": "reasoning", "summary": [], "encrypted_content": "of another server"}, ASKED],
        [{"type": "local_shell_call", "call_id": "c", "action": {"command": ["ls"]}, "status": "completed"}, OUTPUT],
        [CALL | {"parsed_arguments": {}, "index": 0}, OUTPUT | {"output": [{"type": "input_text", "text": "x"}]}],
        [{"type": "shell_call_output", "call_id": "c", "output": [{"stdout": "x", "stderr": ""}]}, ASKED],
        [{"type": "custom_tool_call", "call_id": "c", "name": "apply_patch", "input": "*** Begin"}, OUTPUT],
        [ASKED, {"role": "assistant", "content": "a"}, {"role": "developer", "content": "Late rule."}, ASKED],
        [{"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}, ASKED],
    ],
    ids=str,
)
def test_items_of_other_servers(answered: Callable[..., dict[str, Any]], items: list[Any]) -> None:
    answer = answered("responses", RESPONSE | {"input": items, "tools": FLAT})
    assert said(answer) == "Sun."
    if any(item.get("type") == "local_shell_call" for item in items):
        without = answered("responses", RESPONSE | {"input": [CALL, OUTPUT], "tools": FLAT})
        assert num_read(without) < num_read(answer), "the call is text that the model reads"


@pytest.mark.parametrize(
    "tool",
    [
        {"type": "web_search"},
        {"type": "local_shell"},
        {"type": "mcp", "server_label": "x", "tools": "odd", "name": 3},
        {"type": "image_generation", "size": "1024x1024"},
        {"type": "namespace", "name": "empty", "tools": [{"type": "file_search"}]},
    ],
    ids=str,
)
def test_tools_that_are_not_run_here_are_left_out(answered: Callable[..., dict[str, Any]], tool: Any) -> None:
    plain = answered("responses", RESPONSE | {"tools": FLAT})
    answer = answered("responses", RESPONSE | {"tools": [*FLAT, tool]})
    assert num_read(answer) == num_read(plain)
    assert said(answered("responses", RESPONSE | {"tools": [tool]})) == "Sun."


def test_allowed_tools(served: tuple[str, Api], answered: Callable[..., dict[str, Any]]) -> None:
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "stop-it"}]}
    answer = answered("responses", RESPONSE | {"tools": FLAT, "tool_choice": allowed})
    assert num_read(answer) == num_read(answered("responses", RESPONSE | {"tools": FLAT[1:]}))
    nested = {"type": "function", "function": {"name": "stop-it"}}
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [nested]}}
    chat = answered("chat/completions", CHAT | {"tools": TOOLS, "tool_choice": choice})
    assert num_read(chat) == num_read(answered("chat/completions", CHAT | {"tools": TOOLS[1:]}))
    wrong = {"type": "function", "name": "none-such"}
    refusal = served[1].post("responses", RESPONSE | {"tools": FLAT, "tool_choice": wrong})
    assert (refusal.status_code, refusal.json()["error"]["param"]) == (400, "tool_choice")


def test_tools_of_a_namespace(served: tuple[str, Api], made_to_write: Callable[[str], dict[str, Any]]) -> None:
    name, api = served
    made_to_write(ANSWERS[name].replace("get_weather", "ns__get_weather"))
    space = {"type": "namespace", "name": "ns", "description": "d", "tools": [FLAT[0]]}
    body = RESPONSE | {"tools": [FLAT[0], space]}
    first = api.post("responses", body).json()
    call = first["output"][-1]
    assert (call["name"], call["namespace"], call["arguments"]) == ("get_weather", "ns", ARGUMENTS)
    again = body | {"input": [ASKED, call, OUTPUT | {"call_id": call["call_id"]}]}
    assert api.post("responses", again).json()["status"] == "completed"


@pytest.mark.parametrize("path", ["responses", "chat/completions"])
@pytest.mark.parametrize("is_stream", [False, True])
def test_custom_tools(
    served: tuple[str, Api], made_to_write: Callable[[str], dict[str, Any]], path: str, is_stream: bool
) -> None:
    """Their input is text. The model writes it as JSON or, if its calls are not JSON, as plain text."""
    name, api = served
    patch = "*** Begin Patch\n*** End Patch"
    for form in (json.dumps({"input": patch}), *([patch] if name == "harmony" else [])):
        written = ANSWERS[name].replace("get_weather", "apply_patch").replace(ARGUMENTS, form)
        made_to_write(written)
        if path == "responses":
            body = RESPONSE | {"tools": [{"type": "custom", "name": "apply_patch"}], "stream": is_stream}
        else:
            body = CHAT | {"tools": [{"type": "custom", "custom": {"name": "apply_patch"}}], "stream": is_stream}
        answer = api.post(path, body)
        assert answer.status_code == 200, answer.text
        if is_stream:
            chunks = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
            if path == "responses":
                texts = [chunk["delta"] for chunk in chunks if chunk["type"].endswith("custom_tool_call_input.delta")]
            else:
                calls = [call for chunk in chunks for call in chunk["choices"][0]["delta"].get("tool_calls", ())]
                texts = [call["custom"]["input"] for call in calls]
                assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"
            assert "".join(texts) == patch
        elif path == "responses":
            call = answer.json()["output"][-1]
            assert (call["type"], call["name"], call["input"]) == ("custom_tool_call", "apply_patch", patch)
            output = {"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "done"}
            assert api.post(path, body | {"input": [ASKED, call, output]}).status_code == 200
        else:
            [choice] = answer.json()["choices"]
            [call] = choice["message"]["tool_calls"]
            assert (call["type"], call["custom"], choice["finish_reason"]) == (
                "custom",
                {"name": "apply_patch", "input": patch},
                "tool_calls",
            )
            again = [
                *CHAT["messages"],
                choice["message"],
                {"role": "tool", "tool_call_id": call["id"], "content": "ok"},
            ]
            assert api.post(path, body | {"messages": again}).status_code == 200


FORM = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": False}


@pytest.mark.parametrize("strict", [False, True])
def test_a_form_beside_tools(
    served: tuple[str, Api], made_to_write: Callable[[str], dict[str, Any]], strict: bool
) -> None:
    """The output is a call or matches the schema; the grammar allows nothing else."""
    name, api = served
    chat_form = {"type": "json_schema", "json_schema": {"name": "s", "schema": FORM, "strict": strict}}
    form = {"format": {"type": "json_schema", "name": "s", "schema": FORM, "strict": strict}}
    final = "<|channel|>analysis<|message|>So.<|end|><|start|>assistant<|channel|>final<|message|>%s<|return|>"
    final = final if name == "harmony" else "%s"
    call = ANSWERS[name] if name == "harmony" else ANSWERS[name].removeprefix("See.")
    for written, is_call in ((call, True), (final % '{"a": "x"}', False)):
        fields = made_to_write(written)
        [choice] = api.client().chat.completions.create(**fields, response_format=chat_form).choices
        assert (choice.finish_reason == "tool_calls") == is_call
        assert choice.message.content == (None if is_call else '{"a": "x"}')
        answer = api.post("responses", RESPONSE | {"tools": FLAT, "text": form}).json()
        assert answer["output"][-1]["type"] == ("function_call" if is_call else "message")
    made_to_write(final % "no json")
    body = RESPONSE | {"tools": FLAT, "text": form}
    assert api.post("responses", body).status_code == 400
    wrong = {"format": {"type": "json_schema", "name": "s", "schema": {"not": {"const": 1}}}}
    error = api.post("responses", body | {"text": wrong}).json()["error"]
    assert error["param"] == "text.format"
    assert '"not"' in error["message"]


@pytest.mark.parametrize("served", ["harmony-bytes", "hermes"], indirect=True)
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_a_form_beside_tools_holds_a_free_model(served: tuple[str, Api], seed: int) -> None:
    name, api = served
    body = RESPONSE | {"temperature": 1.0, "seed": seed, "max_output_tokens": 1_500, "tools": FLAT}
    form = {
        "type": "object",
        "properties": {"a": {"enum": ["x", "y"]}},
        "required": ["a"],
        "additionalProperties": False,
    }
    text = {"format": {"type": "json_schema", "name": "s", "schema": form, "strict": True}}
    answer = api.post("responses", body | {"text": text}).json()
    if answer["status"] == "incomplete":  # its reasoning used all tokens
        assert name == "harmony"
        return
    last = answer["output"][-1]
    if last["type"] == "message":
        assert json.loads(last["content"][0]["text"])["a"] in ("x", "y")
    else:
        assert isinstance(json.loads(last["arguments"]), dict)


LARK = r"""
start: begin hunk+ "*** End Patch" LF?
begin: "*** Begin Patch" LF
hunk: "*** Add File: " filename LF add_line+
filename: /(.+)/
add_line: "+" /(.*)/ LF -> line
%import common.LF
"""


def test_custom_tools_of_a_grammar(served: tuple[str, Api], made_to_write: Callable[[str], dict[str, Any]]) -> None:
    name, api = served
    patch = "*** Begin Patch\n*** Add File: a.txt\n+one\n+two\n*** End Patch"
    tool = {
        "type": "custom",
        "name": "apply_patch",
        "format": {"type": "grammar", "syntax": "lark", "definition": LARK},
    }
    body = RESPONSE | {"tools": [tool]}
    if name != "harmony":
        error = api.post("responses", body).json()["error"]
        assert (error["param"], error["code"]) == ("tools", "unsupported_parameter")
        return
    written = "<|channel|>commentary to=functions.apply_patch<|message|>%s<|call|>"
    for choice in ("auto", {"type": "custom", "name": "apply_patch"}):
        made_to_write(written % patch)
        answer = api.post("responses", body | {"tool_choice": choice}).json()
        assert answer["output"][-1]["type"] == "custom_tool_call", answer
        assert answer["output"][-1]["input"] == patch
        made_to_write(written % "*** Begin Nonsense")
        assert api.post("responses", body | {"tool_choice": choice}).status_code == 400
    made_to_write("<|channel|>final<|message|>Nothing to do.<|return|>")
    assert said(api.post("responses", body).json()) == "Nothing to do."
    wrong = {"type": "grammar", "syntax": "lark", "definition": "start: ("}
    assert api.post("responses", body | {"tools": [tool | {"format": wrong}]}).json()["error"]["param"] == "tools"


def cases() -> Iterator[Path]:
    data = os.environ.get("SPECULANT_DATA")
    if data is not None:
        yield from sorted((Path(data).parent / "cases" / "http").glob("*.json"))


@pytest.mark.slow
@pytest.mark.parametrize("served", ["harmony"], indirect=True)
def test_bodies_of_real_clients(served: tuple[str, Api], made_to_write: Callable[[str], dict[str, Any]]) -> None:
    """All collected bodies: only questions about images are refused."""
    refused, paths = [], list(cases())
    if not paths:
        pytest.skip("SPECULANT_DATA is not set, or has no cases next to it")
    for path in paths:
        made_to_write('<|channel|>final<|message|>{"a": "x"}<|return|>')
        body = json.loads(path.read_text()) | {"model": "m"}
        answer = served[1].post("chat/completions" if path.name[0] == "c" else "responses", body)
        assert answer.status_code in (200, 400), (path.name, answer.text)
        if answer.status_code != 200:
            refused.append(path.name)
    assert refused == ["c_image.json", "r_image.json"]
