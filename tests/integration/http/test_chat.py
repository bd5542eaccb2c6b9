"""/v1/chat/completions with the official client gives the same text as the library."""

from __future__ import annotations

from typing import Any

import pytest
from openai import OpenAI

from speculant_graph.config import GenerationConfig
from speculant_verifier.decoder import SpeculativeDecoder
from support.http_api import MODEL, serving, tiny_decoder

MESSAGES: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who decides?"}]


def of_library(decoder: SpeculativeDecoder, **settings: Any) -> list[str]:
    config = GenerationConfig.model_validate({"max_tokens": 16, **settings})
    return [result.text for result in decoder.generate([decoder.chat_prompt(MESSAGES)], config)]


@pytest.mark.parametrize(
    ("fields", "settings"),
    [
        ({"temperature": 0.9, "top_p": 0.8, "seed": 8, "n": 3}, {"temperature": 0.9, "top_p": 0.8, "seed": 8, "n": 3}),
        ({"temperature": 1.5, "top_p": 0, "seed": 8}, {"temperature": 1.5, "top_k": 1, "seed": 8}),
        ({"max_completion_tokens": 5}, {"max_tokens": 5}),
        ({"logit_bias": {"65": 90}}, {"logit_bias": {65: 90.0}}),
        (
            {"temperature": 1.2, "seed": 3, "extra_body": {"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.3}},
            {"temperature": 1.2, "seed": 3, "top_k": 5, "min_p": 0.1, "repetition_penalty": 1.3},
        ),
        ({"extra_body": {"min_tokens": 4}}, {"min_tokens": 4}),
        ({"extra_body": {"stop_token_ids": [66], "ignore_eos": True}}, {"end_token_ids": (66,)}),
        (
            {"temperature": 1.0, "seed": 5, "extra_body": {"speculant": {"rule": "token", "speculation": "off"}}},
            {"temperature": 1.0, "seed": 5, "rule": "token", "speculation": "off"},
        ),
    ],
)
def test_the_text_is_the_library_s(
    client: OpenAI, decoder: SpeculativeDecoder, fields: dict[str, Any], settings: dict[str, Any]
) -> None:
    expected = of_library(decoder, **settings)
    whole = client.chat.completions.create(model=MODEL, messages=MESSAGES, **fields)
    assert [choice.message.content for choice in whole.choices] == expected
    assert [choice.index for choice in whole.choices] == list(range(len(expected)))
    pieces = [""] * len(expected)
    for chunk in client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True, **fields):
        for choice in chunk.choices:
            pieces[choice.index] += choice.delta.content or ""
    assert pieces == expected


def test_stop_texts_end_the_text(client: OpenAI, decoder: SpeculativeDecoder) -> None:
    [text] = of_library(decoder, ignore_end_tokens=True)
    stop = text[4:6]
    fields: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "extra_body": {"ignore_eos": True}}
    answer = client.chat.completions.create(**fields, stop=[stop, "never"])
    assert answer.choices[0].message.content == text[: text.index(stop)]
    assert answer.choices[0].finish_reason == "stop"
    chunks = list(client.chat.completions.create(**fields, stop=stop, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text[: text.index(stop)]
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_what_a_stream_is_made_of(client: OpenAI) -> None:
    fields: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "max_tokens": 6, "n": 2, "temperature": 1.0}
    chunks = list(client.chat.completions.create(**fields, stream=True, stream_options={"include_usage": True}))
    *pieces, last = chunks
    assert len({chunk.id for chunk in chunks}) == 1
    for index in (0, 1):
        own = [chunk.choices[0] for chunk in pieces if chunk.choices[0].index == index]
        assert (own[0].delta.role, own[0].delta.content) == ("assistant", "")
        assert [choice.finish_reason is not None for choice in own] == [False] * (len(own) - 1) + [True]
    assert all(chunk.usage is None for chunk in pieces)
    assert all("usage" in chunk.model_fields_set and not hasattr(chunk, "speculant") for chunk in pieces)
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.total_tokens == last.usage.prompt_tokens + last.usage.completion_tokens
    assert last.speculant["steps"] > 0
    plain = list(client.chat.completions.create(**fields, stream=True))
    assert not any("usage" in chunk.model_fields_set for chunk in plain)
    assert [hasattr(chunk, "speculant") for chunk in plain] == [False] * (len(plain) - 1) + [True]


def test_log_probabilities(client: OpenAI, decoder: SpeculativeDecoder) -> None:
    prompt = decoder.chat_prompt(MESSAGES)
    [result] = decoder.generate([prompt], GenerationConfig(max_tokens=12, logprobs=3))
    fields: dict[str, Any] = {"logprobs": True, "top_logprobs": 3, "max_tokens": 12}
    whole = client.chat.completions.create(model=MODEL, messages=MESSAGES, **fields)
    assert whole.choices[0].logprobs is not None
    content = whole.choices[0].logprobs.content
    assert content is not None
    assert [at.logprob for at in content] == pytest.approx([at.logprob for at in result.logprobs], abs=1e-4)
    assert bytes(byte for at in content for byte in at.bytes or ()).decode(errors="replace") == result.text
    for at, own in zip(content, result.logprobs, strict=True):
        assert [top.logprob for top in at.top_logprobs] == pytest.approx(list(own.top_logprobs), abs=1e-4)
    chunks = client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True, **fields)
    streamed = [at for chunk in chunks if (some := chunk.choices[0].logprobs) is not None for at in some.content or ()]
    assert [at.token for at in streamed] == [at.token for at in content]
    assert [at.logprob for at in streamed] == pytest.approx([at.logprob for at in content], abs=1e-4)
    bare = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=2, logprobs=True)
    assert [at.top_logprobs for at in bare.choices[0].logprobs.content] == [[], []]
    assert client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=2).choices[0].logprobs is None


def test_usage_and_statistics(client: OpenAI, decoder: SpeculativeDecoder) -> None:
    prompt = decoder.chat_prompt(MESSAGES)
    results = decoder.generate([prompt], GenerationConfig(max_tokens=20, temperature=1.0, seed=3, n=2))
    answer = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=20, temperature=1.0, seed=3, n=2)
    assert answer.usage is not None
    num_tokens = sum(len(result.token_ids) for result in results)
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (len(prompt), num_tokens)
    assert answer.usage.total_tokens == len(prompt) + num_tokens
    statistics = answer.speculant
    assert statistics["seed"] == 3
    assert statistics["mean_accepted_tokens"] == pytest.approx(num_tokens / statistics["steps"])
    assert statistics["seconds"]["total"] > 0


def test_messages_of_all_kinds_reach_the_template(client: OpenAI, decoder: SpeculativeDecoder) -> None:
    messages: Any = [
        {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "user", "content": "c", "name": "Ann"},
        {"role": "assistant", "content": "d", "reasoning_content": "e", "refusal": None, "tool_calls": None},
        {"role": "user", "content": "f"},
    ]
    plain = [("developer", "a\nb"), ("user", "c"), ("assistant", "d"), ("user", "f")]
    expected = decoder.chat_prompt([{"role": role, "content": content} for role, content in plain])
    answer = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=3)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(expected)
    [result] = decoder.generate([expected], GenerationConfig(max_tokens=3))
    assert answer.choices[0].message.content == result.text


def test_reasoning_effort_goes_to_templates_that_take_it(client: OpenAI, decoder: SpeculativeDecoder) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=2, reasoning_effort="low")
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(decoder.chat_prompt(MESSAGES, reasoning_effort="low"))
    with tiny_decoder("llama", template="{{ messages[0]['content'] }}") as other, serving(other, model_id="x") as api:
        body = {"model": "x", "messages": MESSAGES, "reasoning_effort": "low"}
        refusal = api.post("chat/completions", body)
        assert refusal.status_code == 400
        assert refusal.json()["error"]["param"] == "reasoning_effort"
