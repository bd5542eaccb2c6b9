"""A request's processors are those that transformers makes of the same settings, and settings are checked."""

from __future__ import annotations

import math

import pytest
import torch

from speculant_graph.config import GenerationConfig
from speculant_graph.errors import GenerationError
from speculant_verifier.sampling import processors_of

CPU = torch.device("cpu")


def ours(config, prompt_length=7, end_token_ids=(257,), vocabulary_size=258):
    return processors_of(config, prompt_length, end_token_ids, vocabulary_size, CPU)


@pytest.mark.parametrize(("config", "message"), [
    (GenerationConfig(logit_bias={258: 1.0}), r"logit_bias names token 258.*0\.\.257"),
    (GenerationConfig(logit_bias={3: math.nan}), "logit_bias of token 3 is nan"),
    (GenerationConfig(stop=("x", "")), "stop text has no characters"),
    (GenerationConfig(end_token_ids=(3, 258)), "end_token_ids names token 258"),
    (GenerationConfig(max_tokens=4, min_tokens=5), "min_tokens 5 is more than max_tokens 4"),
])  # fmt: skip
def test_settings_that_do_not_fit_are_refused_with_what_to_do(config, message):
    with pytest.raises(GenerationError, match=message) as raised:
        ours(config)
    assert ";" in str(raised.value)
    assert "\n" not in str(raised.value)
