"""Tiny real models for tests, with random float32 weights and a byte-level tokenizer."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    LlamaConfig,
    MistralConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

from speculant_verifier.model import TargetModel

WINDOW = 16
BOS, EOS = "<|startoftext|>", "<|endoftext|>"


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token per byte, then begin and end of text: 258 ids."""
    vocabulary = {character: index for index, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([BOS, EOS])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=BOS, eos_token=EOS)


def tiny_gpt_oss(
    vocabulary_size: int = 258,
    window: int = WINDOW,
    seed: int = 0,
    *,
    num_layers: int = 2,
) -> TargetModel:
    """Return a random gpt-oss; every second layer has a sliding window."""
    torch.manual_seed(seed)
    config = GptOssConfig(
        vocab_size=vocabulary_size,
        hidden_size=32,
        intermediate_size=32,
        head_dim=16,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_hidden_layers=num_layers,
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=window,
        max_position_embeddings=512,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        initializer_range=0.3,
        eos_token_id=257 if vocabulary_size == 258 else None,
        bos_token_id=None,
        pad_token_id=None,
    )
    model = GptOssForCausalLM(config)
    with torch.no_grad():  # sinks and router start near zero, where errors would not show
        for name, parameter in model.named_parameters():
            if "sinks" in name or "bias" in name:
                parameter.normal_(std=0.5)
    return TargetModel(model, byte_tokenizer(), "tiny-gpt-oss")


def tiny_model(
    family: str,
    seed: int = 0,
    *,
    window: int = WINDOW,
    num_layers: int = 2,
) -> TargetModel:
    """Return a random Llama, Mistral (windows in all layers), Qwen2 (in some), Qwen3 (in none) or Qwen3-MoE."""
    torch.manual_seed(seed)
    kind, more = {
        "llama": (LlamaConfig, {}),
        "mistral": (MistralConfig, {"sliding_window": window}),
        "qwen2": (Qwen2Config, {"use_sliding_window": True, "sliding_window": window, "max_window_layers": 1}),
        "qwen3": (Qwen3Config, {"head_dim": 16}),
        "qwen3_moe": (Qwen3MoeConfig, {"head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2,
                                       "moe_intermediate_size": 32, "norm_topk_prob": True}),
    }[family]  # fmt: skip
    config = kind(
        vocab_size=258,
        hidden_size=32,
        intermediate_size=64,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_hidden_layers=num_layers,
        max_position_embeddings=512,
        initializer_range=0.3,
        eos_token_id=257,
        bos_token_id=None,
        pad_token_id=None,
        **more,
    )
    return TargetModel(AutoModelForCausalLM.from_config(config), byte_tokenizer(), f"tiny-{family}")


def pack_experts(folder: Path) -> dict[str, torch.Tensor]:
    """Convert a gpt-oss checkpoint to the published format: experts in blocks of 32 four-bit numbers with a scale.

    Returns:
        The random blocks.
    """
    generator = torch.Generator().manual_seed(0)
    weights = load_file(folder / "model.safetensors")
    packed = {}
    for name in [name for name in weights if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, inner, outer = weights.pop(name).shape
        size = (experts, outer, inner // 32)
        packed[f"{name}_blocks"] = torch.randint(0, 256, (*size, 16), dtype=torch.uint8, generator=generator)
        packed[f"{name}_scales"] = torch.randint(120, 126, size, dtype=torch.uint8, generator=generator)
    half = {name: tensor.bfloat16() for name, tensor in weights.items()}
    save_file(half | packed, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config |= {"dtype": "bfloat16", "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": []}}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return packed
