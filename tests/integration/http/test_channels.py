"""Chats with a model that writes in harmony channels: a real engine that is made to write a given answer."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from speculant_graph.config import DraftConfig, VerifierConfig
from speculant_verifier.decoder import SpeculativeDecoder
from speculant_verifier.engine import Request
from support.harmony import harmony_tokenizer
from support.http_api import Api, serving
from support.tiny_models import tiny_gpt_oss

THOUGHT, SAID = "A 🦊?", "Fünf. Yes"
ANSWER = f"<|channel|>analysis<|message|>{THOUGHT}<|end|><|start|>assistant<|channel|>final<|message|>{SAID}"
MESSAGES: Any = [{"role": "user", "content": "Who?"}]


@pytest.fixture(scope="module", params=["bytes", "gpt-oss"])
def api(request: pytest.FixtureRequest) -> Iterator[Api]:
    tokenizer = harmony_tokenizer(request.param)
    target = tiny_gpt_oss(vocabulary_size=max(320, len(tokenizer)))
    target._tokenizer = tokenizer
    target.end_token_ids = frozenset(tokenizer.convert_tokens_to_ids(["<|return|>", "<|call|>"]))
    verifier = VerifierConfig(measure_costs=False, num_threads=1)
    with (
        SpeculativeDecoder(target=target, verifier_config=verifier, draft_config=DraftConfig(k=0)) as decoder,
        serving(decoder, model_id="m") as running,
    ):
        yield running


@pytest.fixture(params=["<|return|>", ""])
def answer(api: Api, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The model writes the answer, with an end token or up to max_tokens."""
    tokens = api.decoder.target.tokenizer.encode(ANSWER + request.param, add_special_tokens=False)
    monkeypatch.setattr("speculant_verifier.text.Request", partial(Request, forced=tuple(tokens)))
    return list(tokens)


def test_channels_whole_and_streamed(api: Api, answer: list[int]) -> None:
    fields: dict[str, Any] = {"model": "m", "messages": MESSAGES, "max_tokens": len(answer)}
    whole = api.client().chat.completions.create(**fields, logprobs=True)
    message = whole.choices[0].message
    assert (message.reasoning_content, message.content) == (THOUGHT, SAID)
    assert whole.usage is not None
    assert whole.usage.completion_tokens == len(answer)
    assert whole.choices[0].logprobs is not None
    assert len(whole.choices[0].logprobs.content or ()) == len(answer)
    reasoning, content = [], []
    for chunk in api.client().chat.completions.create(**fields, stream=True):
        delta = chunk.choices[0].delta
        reasoning.append(getattr(delta, "reasoning_content", "") or "")
        content.append(delta.content or "")
    assert ("".join(reasoning), "".join(content)) == (THOUGHT, SAID)
    assert len([piece for piece in content if piece]) > 1  # as it comes


def test_stop_texts(api: Api, answer: list[int]) -> None:
    fields: dict[str, Any] = {"model": "m", "messages": MESSAGES, "max_tokens": len(answer), "stop": ". Y"}
    choice = api.client().chat.completions.create(**fields).choices[0]
    assert (choice.message.content, choice.finish_reason) == ("Fünf", "stop")
    chunks = list(api.client().chat.completions.create(**fields, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Fünf"
