"""Stored responses: used by later ones, by URL, by item references, and as encrypted content kept by clients."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from speculant_graph.config import GenerationConfig
from speculant_verifier.decoder import SpeculativeDecoder
from speculant_verifier.http import app
from speculant_verifier.http.responses_store import Seal
from support.access import entry, policy
from support.http_api import MODEL, Api, serving, tiny_decoder
from support.tool_models import ANSWERS, TOOLS

FLAT = [{"type": "function", **tool["function"]} for tool in TOOLS]
ASKED: dict[str, Any] = {"role": "user", "content": "Rain?"}
BODY: dict[str, Any] = {"model": "m", "input": [ASKED], "tools": FLAT, "max_output_tokens": 300}
HARMONY = pytest.mark.parametrize("served", ["harmony-bytes"], indirect=True)


def output_of(call: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call["call_id"], "output": "Sunny."}


def test_responses_by_their_address(served: tuple[str, Api], made_to_write: Callable[[str], dict[str, Any]]) -> None:
    name, api = served
    made_to_write(ANSWERS[name])
    client = api.client()
    made = client.responses.create(**BODY)
    kept = client.responses.retrieve(made.id)
    assert kept.model_dump() == made.model_dump()
    client.responses.delete(made.id)
    for method in ("GET", "DELETE"):
        gone = api.http.request(method, f"/v1/responses/{made.id}")
        assert (gone.status_code, gone.json()["error"]["code"]) == (404, "response_not_found")
    assert api.post("responses", BODY | {"previous_response_id": made.id}).status_code == 400
    unkept = client.responses.create(**BODY, store=False)
    assert api.get(f"/v1/responses/{unkept.id}").status_code == 404


def test_responses_are_their_tenant_s(decoder: SpeculativeDecoder, tmp_path: Path) -> None:
    access = policy(tmp_path / "access.toml", entry("ann", "key-a"), entry("bob", "key-b"))
    with serving(decoder, access) as api:
        body = {"model": MODEL, "input": "Once", "max_output_tokens": 2}
        made = api.post("responses", body, headers={"authorization": "Bearer key-a"}).json()
        for key, status in (("key-b", 404), ("key-a", 200)):
            for method in ("GET", "DELETE"):
                answer = api.http.request(
                    method, f"/v1/responses/{made['id']}", headers={"authorization": f"Bearer {key}"}
                )
                assert answer.status_code == status


@pytest.mark.parametrize("given", [[{"type": "item_reference", "id": "msg_of_yesterday"}]], ids=str)
def test_instructions_or_an_earlier_response_fill_what_is_unknown(api: Api, given: str | list[Any]) -> None:
    body = {"model": MODEL, "max_output_tokens": 2}
    made = api.post("responses", body | {"input": "Once"}).json()
    for more, status in (({"instructions": "Be brief."}, 200), ({"previous_response_id": made["id"]}, 200), ({}, 400)):
        assert api.post("responses", body | {"input": given} | more).status_code == status


@HARMONY
def test_items_by_reference(served: tuple[str, Api], made_to_write: Callable[[str], dict[str, Any]]) -> None:
    """For clients that let the server keep reasoning: a reference is equivalent to the item."""
    name, api = served
    made_to_write(ANSWERS[name])
    thought, call = api.post("responses", BODY).json()["output"]
    assert thought["type"] == "reasoning"
    rest = [call, output_of(call)]

    def num_read(*items: Any) -> int:
        answer = api.post("responses", BODY | {"input": [ASKED, *items, *rest], "max_output_tokens": 1})
        assert answer.status_code == 200, answer.text
        return int(answer.json()["usage"]["input_tokens"])

    whole = num_read(thought)
    assert num_read({"type": "item_reference", "id": thought["id"]}) == num_read({"id": thought["id"]}) == whole
    assert num_read({"type": "item_reference", "id": "rs_unknown"}) == num_read() <= whole
    by_reference = [ASKED, *({"type": "item_reference", "id": item["id"]} for item in (thought, call)), rest[1]]
    answer = api.post("responses", BODY | {"input": by_reference, "max_output_tokens": 1}).json()
    assert answer["usage"]["input_tokens"] == whole


@HARMONY
def test_sealed_thoughts(served: tuple[str, Api], made_to_write: Callable[[str], dict[str, Any]]) -> None:
    name, api = served
    made_to_write(ANSWERS[name])
    body = BODY | {"store": False, "include": ["reasoning.encrypted_content"]}
    thought, call = api.post("responses", body).json()["output"]
    sealed = {
        "type": "reasoning",
        "id": thought["id"],
        "summary": [],
        "encrypted_content": thought["encrypted_content"],
    }
    rest = [call, output_of(call)]

    def num_read(item: dict[str, Any]) -> int:
        answer = api.post("responses", body | {"input": [ASKED, item, *rest], "max_output_tokens": 1})
        assert answer.status_code == 200, answer.text
        return int(answer.json()["usage"]["input_tokens"])

    assert num_read(sealed) == num_read(thought)
    forged = sealed | {"encrypted_content": sealed["encrypted_content"][:-4] + "AAAA"}
    assert num_read(forged) == num_read(sealed | {"encrypted_content": "gAAAA of another server"}) <= num_read(sealed)


def test_seals_open_for_their_tenant_alone() -> None:
    seal, other = Seal(), Seal()
    for text in ("", "Hm.", "ümlaut \U0001f98a" * 50):
        closed = seal.closed("ann", text)
        assert seal.opened("ann", closed) == text
        assert seal.opened("bob", closed) is None
        assert other.opened("ann", closed) is None
        assert seal.opened("ann", closed[:-2]) is None
        assert seal.opened("ann", "s1.ü") is None


@HARMONY
def test_log_probabilities_of_messages(served: tuple[str, Api], made_to_write: Callable[[str], dict[str, Any]]) -> None:
    _, api = served
    final = "Fünf Grad."
    made_to_write(
        f"<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>{final}<|return|>"
    )
    answer = api.post("responses", BODY | {"top_logprobs": 2}).json()
    [part] = answer["output"][-1]["content"]
    assert bytes(byte for entry in part["logprobs"] for byte in entry["bytes"]).decode() == final
    assert all(len(entry["top_logprobs"]) == 2 for entry in part["logprobs"])
    events = api.client().responses.create(**BODY, top_logprobs=2, stream=True)
    deltas = [entry for event in events if event.type == "response.output_text.delta" for entry in event.logprobs]
    assert [entry.token for entry in deltas] == [entry["token"] for entry in part["logprobs"]]
    plain = api.post("responses", BODY | {"include": ["message.output_text.logprobs"]}).json()
    assert [entry["top_logprobs"] for entry in plain["output"][-1]["content"][0]["logprobs"]] == [[]] * len(deltas)
    assert api.post("responses", BODY).json()["output"][-1]["content"][0]["logprobs"] == []


def test_conversations_that_are_too_long(api: Api) -> None:
    """'auto' drops the earliest items and the outputs of dropped calls; the latest item and the instructions stay."""
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    items = [call, {"type": "function_call_output", "call_id": "c", "output": "x" * 100}]
    items += [{"role": role, "content": role[0] * 100} for _ in range(4) for role in ("user", "assistant")]
    body: dict[str, Any] = {"model": MODEL, "instructions": "Be brief.", "max_output_tokens": 40}
    long = body | {"input": [*items, {"role": "user", "content": "Rain?"}]}
    refusal = api.post("responses", long)
    assert (refusal.status_code, refusal.json()["error"]["code"]) == (400, "context_length_exceeded")
    answer = api.post("responses", long | {"truncation": "auto"}).json()
    assert answer["truncation"] == "auto"
    assert 300 < answer["usage"]["input_tokens"] <= 512 - 40
    short = body | {"input": items[:2]}
    untouched = [api.post("responses", short | more).json() for more in ({}, {"truncation": "auto"})]
    assert untouched[0]["usage"]["input_tokens"] == untouched[1]["usage"]["input_tokens"]
    hopeless = api.post("responses", body | {"input": "x" * 600, "truncation": "auto"})
    assert hopeless.json()["error"]["code"] == "context_length_exceeded"


def test_answers_without_a_limit_take_the_rest() -> None:
    chat: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "Once"}], "ignore_eos": True}
    response: dict[str, Any] = {"model": MODEL, "input": "Once"}
    for most, least, settings in ((80, 80, {}), (512, 60, {"max_kv_tokens": 96})):
        # If memory holds fewer tokens than the context, that is the limit, but no reason to refuse.
        with tiny_decoder("llama", max_batch_size=1, **settings) as decoder:
            decoder.target.max_length = most
            with serving(decoder, defaults=GenerationConfig(), model_id=MODEL) as api:
                assert least <= api.post("chat/completions", chat).json()["usage"]["total_tokens"] <= min(most, 96)
                assert api.post("responses", response).status_code == 200
                assert api.post("chat/completions", chat | {"max_tokens": 400}).status_code == 400
            with serving(decoder, defaults=GenerationConfig(max_tokens=9), model_id=MODEL) as api:
                assert api.post("chat/completions", chat).json()["usage"]["completion_tokens"] == 9


@pytest.mark.parametrize(
    ("path", "first"),
    [
        ("responses", "event: response.created"),
        ("chat/completions", "data: "),
        ("completions", ": "),
        ("messages", "event: message_start"),
    ],
)
def test_streams_begin_at_admission(monkeypatch: pytest.MonkeyPatch, path: str, first: str) -> None:
    """A stream begins before the prefill, and sends comments while there is no output."""
    monkeypatch.setattr(app, "_PAUSE_S", 0.02)
    released = threading.Event()
    with tiny_decoder("llama") as decoder, serving(decoder, model_id=MODEL) as api:
        step = decoder.engine.step

        def held() -> Any:
            released.wait()
            return step()

        monkeypatch.setattr(decoder.engine, "step", held)
        body: dict[str, Any] = {"model": MODEL, "stream": True, "max_tokens": 2}
        if path == "responses":
            body = {"model": MODEL, "stream": True, "max_output_tokens": 2, "input": "Once"}
        elif path == "completions":
            body["prompt"] = "Once"
        else:
            body["messages"] = [{"role": "user", "content": "Once"}]
        try:
            with api.http.stream("POST", f"/v1/{path}", json=body) as answer:
                assert answer.status_code == 200
                lines = answer.iter_lines()
                assert next(lines).startswith(first)
                for line in lines:
                    if line.startswith(":"):
                        break
                released.set()
                assert any(line for line in lines)
        finally:
            released.set()
        wrong = {"stop": "x"} if path == "responses" else {"temperature": -1}
        assert api.post(path, body | wrong).status_code == 400
