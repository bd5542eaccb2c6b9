"""A request's processors are those that transformers makes of the same settings, and settings are checked."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from speculant_graph.config import GenerationConfig
from speculant_graph.errors import GenerationError
from speculant_verifier.sampling import end_token_ids_of, processors_of
from support.transformers_settings import sampling_settings, transformers_processors

CPU = torch.device("cpu")


def ours(config, prompt_length=7, end_token_ids=(257,), vocabulary_size=258):
    return processors_of(config, prompt_length, end_token_ids, vocabulary_size, CPU)


def parameters(processor):
    def plain(value):
        return value.tolist() if isinstance(value, torch.Tensor) else value

    return {name: plain(value) for name, value in vars(processor).items()}


@given(sampling_settings(), st.sampled_from([None, [257], [256, 257]]), st.integers(1, 20))
def test_types_order_and_parameters_are_those_of_transformers(llama, config, end_token_ids, prompt_length):
    mine = ours(config, prompt_length, end_token_ids or ())
    theirs = transformers_processors(llama, config, prompt_length, end_token_ids)
    assert [type(processor) for processor in mine] == [type(processor) for processor in theirs]
    assert [parameters(processor) for processor in mine] == [parameters(processor) for processor in theirs]


def test_all_of_them_at_once_are_there():
    config = GenerationConfig(
        temperature=0.5, top_k=3, top_p=0.5, min_p=0.1, repetition_penalty=1.1, logit_bias={1: 1.0}, min_tokens=1,
    )  # fmt: skip
    assert len(ours(config)) == 7


@pytest.mark.parametrize(("config", "message"), [
    (GenerationConfig(logit_bias={258: 1.0}), r"logit_bias names token 258.*0\.\.257"),
    (GenerationConfig(logit_bias={-1: 1.0}), "logit_bias names token -1"),
    (GenerationConfig(logit_bias={3: math.nan}), "logit_bias of token 3 is nan"),
    (GenerationConfig(logit_bias={3: math.inf}), "logit_bias of token 3 is inf"),
    (GenerationConfig(stop=("x", "")), "stop text has no characters"),
    (GenerationConfig(end_token_ids=(3, 258)), "end_token_ids names token 258"),
    (GenerationConfig(max_tokens=4, min_tokens=5), "min_tokens 5 is more than max_tokens 4"),
])  # fmt: skip
def test_settings_that_do_not_fit_are_refused_with_what_to_do(config, message):
    with pytest.raises(GenerationError, match=message) as raised:
        ours(config)
    assert ";" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_request_may_name_its_own_end_tokens():
    assert end_token_ids_of(GenerationConfig(), {1, 2}) == {1, 2}
    assert end_token_ids_of(GenerationConfig(end_token_ids=(5,)), {1, 2}) == {5}
    assert end_token_ids_of(GenerationConfig(end_token_ids=()), {1, 2}) == set()
