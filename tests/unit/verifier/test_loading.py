"""Checkpoints on disk: quantized, sharded, incomplete or too large; and the implementation of experts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from speculant_graph.config import VerifierConfig
from speculant_graph.errors import ConfigError
from speculant_verifier.model import TargetModel
from speculant_verifier.model.loading import device_named, load_model
from speculant_verifier.offload import placement
from speculant_verifier.offload.weight_files import require_whole
from support.caching import TOLERANCE, Rows
from support.tiny_models import pack_experts, tiny_gpt_oss, tiny_model

FP4 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]


def save(target: TargetModel, folder: Path, **options) -> Path:
    target.model.save_pretrained(folder, **options)
    target.tokenizer.save_pretrained(folder)
    return folder


def load(folder: Path, **settings) -> TargetModel:
    return TargetModel.load(VerifierConfig(model_name=str(folder), num_threads=1, **settings))


@pytest.fixture(scope="module")
def mxfp4(tmp_path_factory) -> tuple[Path, dict[str, torch.Tensor]]:
    folder = save(tiny_gpt_oss(num_layers=4), tmp_path_factory.mktemp("mxfp4"))
    return folder, pack_experts(folder)


def decoded(blocks: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Decode MXFP4 by definition: low nibble first, times two to the power of (scale - 127)."""
    numbers = torch.tensor(FP4)[torch.stack([blocks & 15, blocks >> 4], dim=-1).long()].flatten(-2)
    numbers = numbers * 2.0 ** (scales.float() - 127)[..., None]
    return numbers.flatten(-2).transpose(1, 2)


@pytest.mark.parametrize("dtype", ["bfloat16", "auto", "float32"])
def test_four_bit_weights_are_decoded_exactly_on_a_cpu(mxfp4, dtype):
    folder, packed = mxfp4
    target = load(folder, device="cpu", dtype=dtype)
    expected = torch.bfloat16 if dtype == "bfloat16" else torch.float32
    weights = target.model.state_dict()
    assert len(packed) == 2 * 2 * 4
    for name in [name.removesuffix("_blocks") for name in packed if name.endswith("_blocks")]:
        assert weights[name].dtype == expected
        assert torch.equal(weights[name].float(), decoded(packed[f"{name}_blocks"], packed[f"{name}_scales"]))
    assert target.model.dtype == expected
    if dtype == "float32":
        rows = Rows(target, target.new_cache(2), 0)
        rows.start(0, 40)
        rows.start(1, 3)
        assert rows.verify([0, 1]) < TOLERANCE


def test_experts_are_never_copied_per_token():
    """This holds even if the checkpoint's configuration requests it."""
    for target in (tiny_gpt_oss(), tiny_model("qwen3_moe")):
        assert target.model.config._experts_implementation == "grouped_mm"
    model = tiny_gpt_oss().model
    model.set_experts_implementation("batched_mm")
    TargetModel(model, tiny_gpt_oss().tokenizer, "again")
    assert model.model.layers[0].mlp.experts.config._experts_implementation == "grouped_mm"


def test_a_checkpoint_in_several_files(tmp_path):
    target = tiny_model("llama")
    folder = save(target, tmp_path / "sharded", max_shard_size="60KB")
    shards = sorted(folder.glob("*.safetensors"))
    assert len(shards) > 1
    again = load(folder)
    for name, weight in target.model.state_dict().items():
        assert torch.equal(weight, again.model.state_dict()[name])
    shards[1].unlink()
    with pytest.raises(ConfigError) as caught:
        load(folder)
    assert caught.value.field == "verifier.model_name"


def test_missing_weights_are_not_made_up(tmp_path):
    folder = save(tiny_model("llama"), tmp_path / "incomplete")
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError) as caught:
        load(folder)
    assert caught.value.field == "verifier.model_name"


@pytest.mark.parametrize("resident_layers", [None, 1])
def test_a_file_of_weights_that_is_too_short_is_named(tmp_path, resident_layers):
    folder = save(tiny_model("llama"), tmp_path / "short")
    path = folder / "model.safetensors"
    for size in (path.stat().st_size - 1, 100, 3):
        os.truncate(path, size)
        for refuse in (lambda: load(folder, resident_layers=resident_layers), lambda: require_whole(folder)):
            with pytest.raises(ConfigError) as caught:
                refuse()
            assert str(path) in str(caught.value)


def test_a_model_that_memory_can_not_hold_is_refused_before_it_is_read(tmp_path, monkeypatch):
    folder = save(tiny_model("llama"), tmp_path / "model")
    monkeypatch.setattr(placement, "available_bytes", lambda: 100_000)
    with pytest.raises(ConfigError) as caught:
        load_model(VerifierConfig(model_name=str(folder)), may_stream=False)
    assert caught.value.field == "verifier.model_name"
    with pytest.raises(ConfigError) as caught:
        load_model(VerifierConfig(model_name=str(folder), resident_layers=1), may_stream=False)
    assert caught.value.field == "verifier.model_name"
    monkeypatch.setattr(placement, "available_bytes", lambda: None)
    assert load(folder, dtype="bfloat16").model.dtype == torch.bfloat16


@pytest.mark.parametrize("name", ["mps", "xpu", "meta", "mps:0", "nonsense", "cuda:99", "cuda:x", "", "CPU"])
def test_devices_that_models_are_not_run_on(name):
    with pytest.raises(ConfigError) as caught:
        device_named(name)
    assert caught.value.field == "verifier.device"
    assert len(str(caught.value).splitlines()) == 1
    assert "; use " in str(caught.value)
    assert name in str(caught.value)
