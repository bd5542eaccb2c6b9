"""The demo's model in shapes that other engines accept, with the same outputs.

Kernels of other engines need widths that are multiples of 32. Passes of a model with 5 million parameters are too short
to measure. Zero padding around its weights solves both and does not change outputs.
"""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

_WEIGHTS, _CONFIG = "model.safetensors", "config.json"
_COPIED = ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja")
_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"
_LAYER = re.compile(r"model\.layers\.\d+\.")

# Name after the layer's prefix -> kind of each dimension: width of the model, of an expert, or of its gate and up
# together.
_HIDDEN, _INTERMEDIATE, _GATE_UP, _SAME = "hidden", "intermediate", "gate_up", ""
_DIMENSIONS = {
    _EMBEDDING: (_SAME, _HIDDEN),
    _HEAD: (_SAME, _HIDDEN),
    "model.norm.weight": (_HIDDEN,),
    "input_layernorm.weight": (_HIDDEN,),
    "post_attention_layernorm.weight": (_HIDDEN,),
    **{f"self_attn.{name}_proj.weight": (_SAME, _HIDDEN) for name in "qkv"},
    **{f"self_attn.{name}_proj.bias": (_SAME,) for name in "qkv"},
    "self_attn.o_proj.weight": (_HIDDEN, _SAME),
    "self_attn.o_proj.bias": (_HIDDEN,),
    "self_attn.sinks": (_SAME,),
    "mlp.router.weight": (_SAME, _HIDDEN),
    "mlp.router.bias": (_SAME,),
    "mlp.experts.gate_up_proj": (_SAME, _HIDDEN, _GATE_UP),
    "mlp.experts.gate_up_proj_bias": (_SAME, _GATE_UP),
    "mlp.experts.down_proj": (_SAME, _INTERMEDIATE, _HIDDEN),
    "mlp.experts.down_proj_bias": (_SAME, _HIDDEN),
}


def pad_checkpoint(source: Path, target: Path, hidden: int, intermediate: int) -> None:
    """Write a gpt-oss checkpoint in float32, padded with zeros to larger widths, with the same outputs.

    The norms take the root mean square over more numbers, so their weights and their epsilon are scaled down. Shared
    and default values are written explicitly, as vLLM requires: the output matrix, and rotary positions as YaRN with
    factor 1.

    Args:
        source: folder of a checkpoint with unquantized weights in one file.
        target: folder to create; existing files are replaced.
        hidden: width of the model; the least for vLLM's CPU kernels are 160 and 192.
        intermediate: width of an expert.
    """
    config, weights = read_checkpoint(source)
    old_hidden = int(config["hidden_size"])
    weights.setdefault(_HEAD, weights[_EMBEDDING])
    sizes = {_HIDDEN: hidden, _INTERMEDIATE: intermediate, _GATE_UP: 2 * intermediate}
    padded = {}
    for name, weight in weights.items():
        dimensions = _DIMENSIONS[_LAYER.sub("", name)]
        scale = math.sqrt(old_hidden / hidden) if name.endswith("norm.weight") else 1.0
        wider = weight.new_zeros([sizes.get(kind, size) for kind, size in zip(dimensions, weight.shape, strict=True)])
        wider[tuple(slice(size) for size in weight.shape)] = weight * scale
        padded[name] = wider
    config |= {
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "rms_norm_eps": config["rms_norm_eps"] * old_hidden / hidden,
        "rope_parameters": _rope_as_yarn(config),
        "tie_word_embeddings": False,
        "dtype": "float32",
    }
    target.mkdir(parents=True, exist_ok=True)
    for file in _COPIED:
        if (source / file).exists():
            shutil.copyfile(source / file, target / file)
    save_file(padded, target / _WEIGHTS, metadata={"format": "pt"})
    (target / _CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def read_checkpoint(folder: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Return a checkpoint's configuration, and the weights of its one file as float32."""
    config = json.loads((folder / _CONFIG).read_text(encoding="utf-8"))
    return config, {name: weight.float() for name, weight in load_file(folder / _WEIGHTS).items()}


def _rope_as_yarn(config: dict[str, Any]) -> dict[str, Any]:
    """Return rotary parameters in YaRN's form; factor 1 does not change any frequency."""
    rope: dict[str, Any] = config["rope_parameters"]
    if rope["rope_type"] != "default":
        return rope
    return {
        "rope_type": "yarn",
        "rope_theta": rope["rope_theta"],
        "factor": 1.0,
        "original_max_position_embeddings": config["max_position_embeddings"],
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
    }
