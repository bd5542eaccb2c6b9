"""/v1/completions with the official client gives the same text as the library."""

from __future__ import annotations

from typing import Any

import pytest
from openai import OpenAI

from speculant_graph.config import GenerationConfig
from speculant_verifier.decoder import SpeculativeDecoder
from support.http_api import MODEL


@pytest.mark.parametrize(
    "prompt",
    ["The parties agree", ["The parties", "In case of"], [84, 104, 101], [[84, 104, 101], [73, 110]]],
    ids=["text", "texts", "tokens", "lists of tokens"],
)
@pytest.mark.parametrize("n", [1, 2])
def test_the_text_is_the_library_s(client: OpenAI, decoder: SpeculativeDecoder, prompt: Any, n: int) -> None:
    prompts = prompt if isinstance(prompt, list) and not isinstance(prompt[0], int) else [prompt]
    config = GenerationConfig(max_tokens=10, temperature=1.0, seed=11, n=n)
    results = decoder.generate(prompts, config)
    fields: dict[str, Any] = {
        "model": MODEL, "prompt": prompt, "n": n, "max_tokens": 10, "temperature": 1.0, "seed": 11
    }  # fmt: skip
    answer = client.completions.create(**fields)
    assert [choice.text for choice in answer.choices] == [result.text for result in results]
    assert [choice.index for choice in answer.choices] == list(range(len(results)))
    assert [choice.finish_reason for choice in answer.choices] == [result.finish_reason for result in results]
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == sum(len(result.prompt_token_ids) for result in results[::n])
    assert answer.usage.completion_tokens == sum(len(result.token_ids) for result in results)
    pieces, reasons = [""] * len(results), [None] * len(results)
    for chunk in client.completions.create(**fields, stream=True):
        for choice in chunk.choices:
            assert reasons[choice.index] is None
            pieces[choice.index] += choice.text
            reasons[choice.index] = choice.finish_reason
    assert pieces == [result.text for result in results]
    assert reasons == [result.finish_reason for result in results]
