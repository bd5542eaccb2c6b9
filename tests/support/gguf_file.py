"""A gpt-oss checkpoint as a GGUF file, for llama.cpp.

llama.cpp's own converter is not in its packages, and accepts only tokenizers from a list of digests, without the
demo's. Names and layouts follow its ``conversion/gpt_oss.py``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import torch

from speculant_graph.files import replacing
from support.engine_checkpoint import read_checkpoint

_ARCHITECTURE = "gpt-oss"
_SHAPE = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "expert_feed_forward_length": "intermediate_size",
    "expert_count": "num_local_experts",
    "expert_used_count": "num_experts_per_tok",
    "head_count": "num_attention_heads",
    "head_count_kv": "num_key_value_heads",
    "key_length": "head_dim",
    "value_length": "head_dim",
    "rope_dimension_count": "head_dim",
    "layer_norm_rms_eps": "rms_norm_eps",
    "sliding_window": "sliding_window",
}
"""Suffix of the writer's ``add_...`` method -> key in the checkpoint's configuration."""


def write_gguf(source: Path, path: Path) -> None:
    """Write a gpt-oss checkpoint with its tokenizer as a GGUF file of float32 weights.

    Args:
        source: folder of a checkpoint with unquantized weights in one file. Its byte-level BPE tokenizer splits text
            like GPT-2's, as the demo's does. :func:`~support.engine_checkpoint.pad_checkpoint` writes a wider one.
        path: the file; an older file stays intact until the new one is complete.
    """
    config, weights = read_checkpoint(source)
    writer = gguf.GGUFWriter(None, _ARCHITECTURE)
    for name, key in _SHAPE.items():
        getattr(writer, f"add_{name}")(config[key])
    writer.add_name(source.name)
    writer.add_file_type(0)  # all float32
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config["layer_types"]])
    _add_tokenizer(writer, source, config)
    weights.setdefault("lm_head.weight", weights["model.embed_tokens.weight"])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GPT_OSS, config["num_hidden_layers"])
    for name, weight in weights.items():
        for part, tensor in _as_llama(name, weight):
            stored = names.get_name(part, try_suffixes=(".weight", ".bias"))
            writer.add_tensor(stored, tensor.contiguous().numpy())
    with replacing(path, gguf.GGUFReader) as temporary:
        writer.write_header_to_file(temporary)
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


def _add_tokenizer(writer: gguf.GGUFWriter, source: Path, config: dict[str, Any]) -> None:
    tokenizer = json.loads((source / "tokenizer.json").read_text(encoding="utf-8"))
    size = config["vocab_size"]
    tokens, types = [f"[PAD{token_id}]" for token_id in range(size)], [gguf.TokenType.UNUSED] * size
    for token, token_id in tokenizer["model"]["vocab"].items():
        tokens[token_id], types[token_id] = token, gguf.TokenType.NORMAL
    for added in tokenizer["added_tokens"]:
        kind = gguf.TokenType.CONTROL if added["special"] else gguf.TokenType.USER_DEFINED
        tokens[added["id"]], types[added["id"]] = added["content"], kind
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(
        [merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["model"]["merges"]]
    )
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        if isinstance(config.get(name), int):
            getattr(writer, f"add_{name}")(config[name])
    writer.add_add_bos_token(False)


def _as_llama(name: str, weight: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield weights in llama.cpp's layout: rows first, and an expert's interleaved gate and up as separate tensors."""
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
