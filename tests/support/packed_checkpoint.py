"""Checkpoints of random weights in the layout of the released gpt-oss: experts in MXFP4, all else in bfloat16.

    python tests/support/packed_checkpoint.py FOLDER [--layers 24] [--vocabulary 201088] [--tiny]

Every layer has its own file, and only one is in memory at a time. So a small machine can write the released shapes,
whose 24 layers take 13.8 GB. ``--tiny`` writes the shapes of the tests' models.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import GptOssConfig, GptOssForCausalLM

NUMBERS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
_QUANTIZATION = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": [
        "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head",
    ],
}  # fmt: skip


def full_config(num_layers: int = 24, vocabulary_size: int = 201_088) -> GptOssConfig:
    """Return a configuration with the released shapes."""
    return GptOssConfig(
        vocab_size=vocabulary_size, hidden_size=2_880, intermediate_size=2_880, head_dim=64, num_attention_heads=64,
        num_key_value_heads=8, num_hidden_layers=num_layers, num_local_experts=32, num_experts_per_tok=4,
        sliding_window=128, initial_context_length=4_096, max_position_embeddings=131_072, tie_word_embeddings=False,
        rope_parameters={
            "rope_type": "yarn", "rope_theta": 150_000.0, "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
            "truncate": False, "original_max_position_embeddings": 4_096,
        },
        eos_token_id=None, pad_token_id=None, bos_token_id=None,
    )  # fmt: skip


def tiny_config(num_layers: int = 4, num_experts: int = 4) -> GptOssConfig:
    """Return a tiny configuration; two blocks in one dimension, so that no two dimensions can be confused."""
    return GptOssConfig(
        vocab_size=258, hidden_size=32, intermediate_size=64, head_dim=16, num_attention_heads=4, num_key_value_heads=2,
        num_hidden_layers=num_layers, num_local_experts=num_experts, num_experts_per_tok=2, sliding_window=16,
        max_position_embeddings=512, rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        initializer_range=0.3, eos_token_id=257, pad_token_id=None, bos_token_id=None,
    )  # fmt: skip


def write_packed(folder: Path, config: GptOssConfig, seed: int = 0) -> Path:
    """Write a checkpoint without its tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    num_files, places, total = config.num_hidden_layers + 1, {}, 0
    for number, weights in enumerate(_parts(config, generator), 1):
        name = f"model-{number:05}-of-{num_files:05}.safetensors"
        save_file(weights, folder / name, metadata={"format": "pt"})
        places |= dict.fromkeys(weights, name)
        total += sum(each.nbytes for each in weights.values())
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    described = json.loads(config.to_json_string(use_diff=False)) | {
        "architectures": ["GptOssForCausalLM"], "dtype": "bfloat16", "quantization_config": _QUANTIZATION,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(described), encoding="utf-8")
    return folder


def decoded(blocks: Tensor, scales: Tensor) -> Tensor:
    """Return decoded rows by the definition of MXFP4: low half of a byte first, times 2 ** (scale - 127)."""
    numbers = torch.tensor(NUMBERS)[torch.stack([blocks & 15, blocks >> 4], dim=-1).long()].flatten(-2)
    return (numbers * torch.exp2(scales.float() - 127.0)[..., None]).flatten(-2)


def _parts(config: GptOssConfig, generator: torch.Generator) -> Iterator[dict[str, Tensor]]:
    """Yield the tensors of each file: every layer, then the rest."""
    with torch.device("meta"):
        shapes = {name: tuple(each.shape) for name, each in GptOssForCausalLM(config).named_parameters()}
    for index in range(config.num_hidden_layers):
        names = [name for name in shapes if name.startswith(f"model.layers.{index}.")]
        yield dict(_weights({name: shapes.pop(name) for name in names}, generator))
    yield dict(_weights(shapes, generator))


def _weights(shapes: dict[str, tuple[int, ...]], generator: torch.Generator) -> Iterator[tuple[str, Tensor]]:
    for name, shape in shapes.items():
        if name.endswith(("gate_up_proj", "down_proj")):
            num_experts, inner, outer = shape
            blocks = (num_experts, outer, inner // 32)
            exponent = 128 - inner.bit_length() // 2  # outputs are about as large as inputs
            yield f"{name}_blocks", torch.randint(256, (*blocks, 16), dtype=torch.uint8, generator=generator)
            kinds = torch.randint(exponent - 4, exponent - 1, blocks, dtype=torch.uint8, generator=generator)
            yield f"{name}_scales", kinds
        elif "norm" in name:
            yield name, torch.ones(shape, dtype=torch.bfloat16)
        else:
            spread = 0.5 if "bias" in name or "sinks" in name else shape[-1] ** -0.5
            numbers = torch.empty(shape, dtype=torch.bfloat16).normal_(std=spread, generator=generator)
            yield name, numbers


def main() -> None:
    """Write a checkpoint from the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--vocabulary", type=int, default=201_088)
    parser.add_argument("--tiny", action="store_true")
    arguments = parser.parse_args()
    config = tiny_config() if arguments.tiny else full_config(arguments.layers, arguments.vocabulary)
    write_packed(arguments.folder, config)


if __name__ == "__main__":
    main()
