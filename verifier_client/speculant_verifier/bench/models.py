"""Models of benches: a checkpoint, or where there is none, random weights of a given size.

The time of a pass hardly depends on the weights, so a model of random weights measures what a real one of its shape
would take. What it writes means nothing: replay recorded outputs with it.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from transformers import GptOssConfig, GptOssForCausalLM

from speculant_graph.config import VerifierConfig
from speculant_graph.errors import ConfigError
from speculant_verifier.model import TargetModel
from speculant_verifier.model.loading import device_named, load_tokenizer, prepare_cpu

RANDOM = "random:"
"""Prefix of names of models with random weights: 'random:150M', 'random:gpt-oss-20b'."""

_REAL = "gpt-oss-20b"
_SIZE = re.compile(r"\d+(?:\.\d+)?[MB]")
_UNITS = {"M": 1_000_000, "B": 1_000_000_000}
_HIDDEN, _NARROWEST = 512, 64
_HEAD, _EXPERTS, _ACTIVE = 64, 32, 4
_SEED = 0


def load_target(config: VerifierConfig) -> TargetModel:
    """Load a model, or make one of random weights.

    Raises:
        ConfigError: it can't be loaded, or a random one lacks a size or a tokenizer.
    """
    if not config.model_name.startswith(RANDOM):
        return TargetModel.load(config)
    size = config.model_name.removeprefix(RANDOM)
    if size != _REAL and not _SIZE.fullmatch(size):
        raise ConfigError(f"--model: '{size}' is no size of a random model; write {RANDOM}150M or {RANDOM}{_REAL}")
    if config.tokenizer_name is None:
        raise ConfigError(f"--model {config.model_name} needs a tokenizer; name its folder with --tokenizer")
    device = device_named(config.device)
    if device.type == "cpu":
        prepare_cpu(config)
    tokenizer, fingerprint = load_tokenizer(config)
    if config.dtype == "auto":
        dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    else:
        dtype = getattr(torch, config.dtype)
    with torch.random.fork_rng(devices=[]), torch.device(device):
        torch.manual_seed(_SEED)
        model = GptOssForCausalLM._from_config(_architecture(size, fingerprint.vocabulary_size), dtype=dtype)
    return TargetModel(model, tokenizer, config.model_name, fingerprint)


def describe(target: TargetModel) -> dict[str, Any]:
    """Return what was measured on which device, ready for JSON."""
    device = target.device
    return {
        "model": target.name,
        "parameters": sum(parameter.numel() for parameter in target.model.parameters()),
        "dtype": str(target.model.dtype).removeprefix("torch."),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "threads": torch.get_num_threads(),
        "attention": target.model.config._attn_implementation,
    }


def _architecture(size: str, vocabulary_size: int) -> GptOssConfig:
    """Return a shape of about that size: 512 wide, or narrower if the vocabulary would take most of it."""
    if size == _REAL:
        # The values of the released model are the defaults of transformers but for the layers.
        return GptOssConfig(num_hidden_layers=24, num_local_experts=32, eos_token_id=None, pad_token_id=None)
    num_parameters = round(float(size[:-1]) * _UNITS[size[-1]])
    hidden = _HIDDEN
    while hidden > _NARROWEST and vocabulary_size * hidden > 0.8 * num_parameters:
        hidden //= 2
    # Experts of a quarter of the width: 32 of them and their two matrices, and about 3 squares of attention.
    per_layer = _EXPERTS * 3 * hidden * (hidden // 4) + 3 * hidden * hidden
    pairs = (num_parameters - vocabulary_size * hidden) / (2 * per_layer)  # full and sliding attention take turns
    return GptOssConfig(
        vocab_size=vocabulary_size,
        hidden_size=hidden,
        intermediate_size=hidden // 4,
        head_dim=_HEAD,
        num_attention_heads=hidden // _HEAD,
        num_key_value_heads=max(1, hidden // _HEAD // 8),
        num_hidden_layers=2 * max(1, round(pairs)),
        num_local_experts=_EXPERTS,
        num_experts_per_tok=_ACTIVE,
        tie_word_embeddings=True,
        eos_token_id=None,
        bos_token_id=None,
        pad_token_id=None,
    )
