"""The checkpoints and files made for tests and benches of other engines have the same outputs."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from support.engine_checkpoint import pad_checkpoint
from support.gguf_file import write_gguf
from support.tiny_models import WINDOW, tiny_gpt_oss


@pytest.fixture
def source(tmp_path: Path) -> Path:
    target = tiny_gpt_oss(num_layers=4)
    target.model.save_pretrained(tmp_path / "source")
    target.tokenizer.save_pretrained(tmp_path / "source")
    return tmp_path / "source"


@pytest.fixture
def tied(source: Path) -> Path:
    weights = load_file(source / "model.safetensors")
    del weights["lm_head.weight"]
    save_file(weights, source / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    (source / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}), encoding="utf-8")
    return source


def logits(folder: Path, token_ids: torch.Tensor) -> torch.Tensor:
    model, report = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    assert not any(report.values()), "every weight is named and used"
    with torch.no_grad():
        return model(token_ids).logits


@pytest.mark.parametrize(("checkpoint", "sizes"), [("source", (48, 64)), ("tied", (160, 32))])
def test_padding_changes_no_logits(
    checkpoint: str, sizes: tuple[int, int], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    source = request.getfixturevalue(checkpoint)
    hidden, intermediate = sizes
    pad_checkpoint(source, tmp_path / "new" / "padded", hidden, intermediate)
    token_ids = torch.randint(0, 258, (2, 3 * WINDOW), generator=torch.Generator().manual_seed(0))
    expected, padded = logits(source, token_ids), logits(tmp_path / "new" / "padded", token_ids)
    torch.testing.assert_close(padded, expected, rtol=1e-4, atol=1e-4)
    assert expected.std() > 0.1, "logits that could differ"
    weights = load_file(tmp_path / "new" / "padded" / "model.safetensors")
    assert weights["lm_head.weight"].shape == (258, hidden)
    assert weights["model.layers.1.mlp.experts.gate_up_proj"].shape == (4, hidden, 2 * intermediate)
    assert (tmp_path / "new" / "padded" / "tokenizer.json").read_bytes() == (source / "tokenizer.json").read_bytes()


def test_gguf_holds_every_weight(tied: Path, tmp_path: Path) -> None:
    write_gguf(tied, tmp_path / "model.gguf")
    reader = gguf.GGUFReader(tmp_path / "model.gguf")
    stored = {tensor.name: tensor.data for tensor in reader.tensors}
    weights = load_file(tied / "model.safetensors")
    assert sum(tensor.size for tensor in stored.values()) == sum(
        weight.numel() * (2 if name == "model.embed_tokens.weight" else 1) for name, weight in weights.items()
    ), "the output matrix is written out"
    gate_up = weights["model.layers.2.mlp.experts.gate_up_proj"].numpy()
    assert (stored["blk.2.ffn_gate_exps.weight"] == gate_up[:, :, ::2].swapaxes(1, 2)).all()
    assert (stored["blk.2.ffn_up_exps.weight"] == gate_up[:, :, 1::2].swapaxes(1, 2)).all()
    assert reader.fields["gpt-oss.attention.sliding_window"].contents() == WINDOW
    assert reader.fields["gpt-oss.attention.sliding_window_pattern"].contents() == [True, False, True, False]
    assert len(reader.fields["tokenizer.ggml.tokens"].contents()) == 258
    assert reader.fields["tokenizer.ggml.eos_token_id"].contents() == 257
