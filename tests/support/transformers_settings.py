"""Converts our sampling settings to transformers' settings, for comparisons."""

from __future__ import annotations

import math
from typing import Any

import torch
from hypothesis import strategies as st
from transformers import GenerationConfig as TransformersConfig
from transformers import LogitsProcessorList

from speculant_graph.config import GenerationConfig
from speculant_verifier.model import TargetModel
from support.tiny_models import byte_tokenizer

TOKENIZER = byte_tokenizer()


@st.composite
def sampling_settings(draw: st.DrawFn, sampled: bool = True) -> GenerationConfig:
    """Draw any combination of the settings for which transformers has a processor."""
    return GenerationConfig(
        max_tokens=30,
        temperature=draw(st.sampled_from([0.0, 0.5, 1.0, 1.7])) if sampled else 0.0,
        top_k=draw(st.sampled_from([0, 1, 5, 1000])),
        top_p=draw(st.sampled_from([0.3, 0.95, 1.0])),
        min_p=draw(st.sampled_from([0.0, 0.1, 1.0])),
        repetition_penalty=draw(st.sampled_from([0.8, 1.0, 1.5])),
        logit_bias=draw(st.dictionaries(st.integers(0, 257), st.sampled_from([-math.inf, -3.0, 0.5, 8.0]), max_size=4)),
        min_tokens=draw(st.sampled_from([0, 1, 12])),
    )


def as_transformers(config: GenerationConfig, end_token_ids: list[int] | None) -> TransformersConfig:
    """Return the same settings in transformers' form."""
    options: dict[str, Any] = {
        "max_new_tokens": config.max_tokens,
        "do_sample": config.temperature > 0,
        "eos_token_id": end_token_ids,
        "pad_token_id": 0,
    }
    if config.temperature > 0:
        options |= {"temperature": config.temperature, "top_k": config.top_k, "top_p": config.top_p}
        options |= {"min_p": config.min_p or None}
    if config.logit_bias:
        options["sequence_bias"] = {(token,): bias for token, bias in config.logit_bias.items()}
    return TransformersConfig(
        repetition_penalty=config.repetition_penalty,
        min_new_tokens=config.min_tokens or None,
        **options,
    )


def transformers_processors(
    target: TargetModel, config: GenerationConfig, prompt_length: int, end_token_ids: list[int] | None
) -> LogitsProcessorList:
    """Return the processors that ``model.generate`` creates from the settings."""
    theirs = as_transformers(config, end_token_ids)
    theirs._eos_token_tensor = torch.tensor(end_token_ids) if end_token_ids else None
    prompt = torch.zeros(1, prompt_length, dtype=torch.long)
    return target.model._get_logits_processor(
        theirs, input_ids_seq_length=prompt_length, encoder_input_ids=prompt, device="cpu"
    )
