"""A gpt-oss checkpoint as a GGUF file, for benches of llama.cpp.

llama.cpp has a converter of its own, which is not in its packages, and which knows a tokenizer only if a digest of it
is in its list; the demo's is not. Names and layouts are those of its ``conversion/gpt_oss.py``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from speculant_graph.errors import ConfigError
from speculant_graph.graph.export import replacing
from speculant_verifier.bench.engine_models import read_checkpoint

_ARCHITECTURE = "gpt-oss"
_ALPHA, _LIMIT = 1.702, 7.0
"""Of the activation of experts; llama.cpp knows no others."""


def write_gguf(source: Path, path: Path) -> None:
    """Write a gpt-oss checkpoint with its tokenizer as a GGUF file of float32 weights.

    Args:
        source: folder of a checkpoint of unquantised weights in one file, with a byte-level BPE tokenizer that splits
            text as GPT-2 does; made by :func:`~speculant_verifier.bench.engine_models.pad_checkpoint`, or narrower.
        path: the file; an older one stays intact until the new one is complete.

    Raises:
        ConfigError: the checkpoint is something else, or the package ``gguf`` is missing.
        GraphFileError: the file can't be written.
    """
    try:
        import gguf
    except ModuleNotFoundError as error:
        raise ConfigError("writing GGUF files needs the package gguf; run: pip install gguf") from error

    config, weights = read_checkpoint(source)
    writer = gguf.GGUFWriter(None, _ARCHITECTURE)
    _add_shape(writer, source, config)
    _add_tokenizer(writer, gguf.TokenType, source, config)
    weights.setdefault("lm_head.weight", weights["model.embed_tokens.weight"])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GPT_OSS, config["num_hidden_layers"])
    for name, weight in weights.items():
        for part, tensor in _as_llama(name, weight):
            stored = names.get_name(part, try_suffixes=(".weight", ".bias"))
            if stored is None:
                raise ConfigError(f"{source} has weights '{name}', which no gpt-oss has; name another checkpoint")
            writer.add_tensor(stored, tensor.contiguous().numpy())
    with replacing(path) as temporary:
        writer.write_header_to_file(temporary)
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


def _add_shape(writer: Any, source: Path, config: dict[str, Any]) -> None:
    rope = config["rope_parameters"]
    if rope["rope_type"] != "default" and rope.get("factor") != 1.0:
        raise ConfigError(f"{source} stretches its rotary positions; name a checkpoint that does not")
    if (config.get("swiglu_alpha", _ALPHA), config.get("swiglu_limit", _LIMIT)) != (_ALPHA, _LIMIT):
        raise ConfigError(f"{source} has experts with another activation; name a checkpoint with that of gpt-oss")
    writer.add_name(source.name)
    writer.add_file_type(0)  # all float32
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_expert_feed_forward_length(config["intermediate_size"])
    writer.add_expert_count(config["num_local_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_sliding_window(config["sliding_window"])
    writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config["layer_types"]])


def _add_tokenizer(writer: Any, kinds: Any, source: Path, config: dict[str, Any]) -> None:
    try:
        tokenizer = json.loads((source / "tokenizer.json").read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{source} has no tokenizer.json ({error.strerror}); name a folder that has") from error
    model, splitter = tokenizer["model"], tokenizer["pre_tokenizer"] or {}
    if model["type"] != "BPE" or splitter["type"] != "ByteLevel" or not splitter["use_regex"]:
        raise ConfigError(f"{source} has another kind of tokenizer; name a checkpoint whose BPE splits text as GPT-2's")
    size = config["vocab_size"]
    tokens, types = [f"[PAD{number}]" for number in range(size)], [kinds.UNUSED] * size
    for token, number in model["vocab"].items():
        tokens[number], types[number] = token, kinds.NORMAL
    for added in tokenizer["added_tokens"]:
        number = added["id"]
        tokens[number], types[number] = added["content"], kinds.CONTROL if added["special"] else kinds.USER_DEFINED
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]])
    for add, number in (
        (writer.add_bos_token_id, config.get("bos_token_id")),
        (writer.add_eos_token_id, config.get("eos_token_id")),
        (writer.add_pad_token_id, config.get("pad_token_id")),
    ):
        if isinstance(number, int):
            add(number)
    writer.add_add_bos_token(False)


def _as_llama(name: str, weight: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield weights as llama.cpp has them, rows first: gate and up of an expert, which take turns here, apart."""
    if name.endswith("gate_up_proj"):
        turned = weight.transpose(-1, -2)
        yield name.replace("gate_up_proj", "gate_proj.weight"), turned[:, ::2]
        yield name.replace("gate_up_proj", "up_proj.weight"), turned[:, 1::2]
    elif name.endswith("gate_up_proj_bias"):
        yield name.replace("gate_up_proj_bias", "gate_proj.bias"), weight[:, ::2]
        yield name.replace("gate_up_proj_bias", "up_proj.bias"), weight[:, 1::2]
    elif name.endswith("experts.down_proj"):
        yield f"{name}.weight", weight.transpose(-1, -2)
    elif name.endswith("experts.down_proj_bias"):
        yield name.replace("_bias", ".bias"), weight
    elif name.endswith("sinks"):
        yield f"{name}.weight", weight
    else:
        yield name, weight
