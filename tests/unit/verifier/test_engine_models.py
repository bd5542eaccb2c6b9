"""The checkpoints and files made for benches of other engines."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from speculant_graph.errors import ConfigError
from speculant_verifier.bench.engine_models import pad_checkpoint
from speculant_verifier.bench.gguf_model import write_gguf
from support.tiny_models import WINDOW, tiny_gpt_oss


def edit(folder: Path, **changes: object) -> None:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps(config | changes), encoding="utf-8")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    target = tiny_gpt_oss()
    target.model.save_pretrained(tmp_path / "source")
    target.tokenizer.save_pretrained(tmp_path / "source")
    return tmp_path / "source"


@pytest.fixture
def tied(source: Path) -> Path:
    weights = load_file(source / "model.safetensors")
    del weights["lm_head.weight"]
    save_file(weights, source / "model.safetensors", metadata={"format": "pt"})
    edit(source, tie_word_embeddings=True)
    return source


def logits(folder: Path, token_ids: torch.Tensor) -> torch.Tensor:
    model, report = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    assert not any(report.values()), "every weight is named and used"
    with torch.no_grad():
        return model(token_ids).logits


@pytest.mark.parametrize(("checkpoint", "sizes"), [("source", (48, 64)), ("tied", (160, 32)), ("source", (32, 32))])
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


def test_what_can_not_be_padded_is_refused(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    for hidden, intermediate in ((31, 32), (32, 31)):
        with pytest.raises(ConfigError, match="choose no less"):
            pad_checkpoint(source, target, hidden, intermediate)
    with pytest.raises(ConfigError, match="checkpoint in one file"):
        pad_checkpoint(tmp_path, target, 48, 48)
    weights = load_file(source / "model.safetensors")
    save_file(weights | {"model.layers.0.extra": torch.ones(2)}, source / "model.safetensors")
    with pytest.raises(ConfigError, match=r"model\.layers\.0\.extra"):
        pad_checkpoint(source, target, 48, 48)
    edit(source, quantization_config={"quant_method": "mxfp4"})
    with pytest.raises(ConfigError, match="unquantised"):
        pad_checkpoint(source, target, 48, 48)
    assert not target.exists()


def test_gguf_without_its_package(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ConfigError, match="pip install gguf"):
        write_gguf(source, tmp_path / "model.gguf")


def test_gguf_holds_every_weight(tied: Path, tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
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


def test_what_llama_cpp_can_not_compute_is_refused(tied: Path, tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    for changes, message in (
        ({"swiglu_limit": 5.0}, "another activation"),
        ({"swiglu_limit": 7.0, "rope_parameters": {"rope_type": "yarn", "factor": 32.0}}, "rotary"),
    ):
        edit(tied, **changes)
        with pytest.raises(ConfigError, match=message):
            write_gguf(tied, tmp_path / "model.gguf")
    assert not list(tmp_path.glob("*.gguf"))
