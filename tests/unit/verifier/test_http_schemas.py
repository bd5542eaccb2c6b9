"""For a body with many errors, only a few are reported, because each report delays other requests."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from speculant_verifier.http.schemas import ChatRequest, CompletionRequest, GenerationRequest

MANY = 5_000
CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
COMPLETION: dict[str, Any] = {"model": "m", "prompt": "x"}


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (CompletionRequest, {"prompt": [-1] * MANY}),
        (CompletionRequest, {"prompt": [[-1] * MANY]}),
        (CompletionRequest, {"prompt": ["a", 1] * MANY}),
        (CompletionRequest, {"stop": [1] * MANY}),
        (CompletionRequest, {"logit_bias": {f"x{number}": 1 for number in range(MANY)}}),
        (CompletionRequest, {f"max_token{number}": 1 for number in range(MANY)}),
        (ChatRequest, {"messages": [{"a": 1}] * MANY}),
        (ChatRequest, {"messages": [{"role": "user", "content": [{"a": 1}] * MANY}]}),
    ],
)
def test_complaints_are_few(kind: type[GenerationRequest], fields: dict[str, Any]) -> None:
    body = (CHAT if kind is ChatRequest else COMPLETION) | fields
    before = {name: len(value) if isinstance(value, list | dict) else value for name, value in body.items()}
    with pytest.raises(ValidationError) as caught:
        kind.model_validate(body)
    assert 1 <= caught.value.error_count() <= 12
    assert {name: len(value) if isinstance(value, list | dict) else value for name, value in body.items()} == before
