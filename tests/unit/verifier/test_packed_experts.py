"""gpt-oss in MXFP4, as published, larger than memory: each expert stays packed until it is multiplied."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils.quantization_config import Mxfp4Config

from speculant_graph import _core
from speculant_graph.config import VerifierConfig
from speculant_graph.errors import ConfigError
from speculant_verifier import half_precision
from speculant_verifier.model import TargetModel
from speculant_verifier.offload import placement, plan_for
from speculant_verifier.offload.packed_experts import PackedExperts, decode, require_packed_weights
from support.lossless import decode as decode_jobs
from support.lossless import mixed_jobs, remembered
from support.packed_checkpoint import decoded, full_config, tiny_config, write_packed
from support.tiny_models import byte_tokenizer


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    return written(tmp_path_factory.mktemp("packed"))


def written(folder: Path) -> Path:
    write_packed(folder, tiny_config())
    byte_tokenizer().save_pretrained(folder)
    return folder


def load(folder: Path, resident: int | None = None, dtype: str = "auto") -> TargetModel:
    return TargetModel.load(
        VerifierConfig(model_name=str(folder), num_threads=1, resident_layers=resident, dtype=dtype)
    )


def logits(model: torch.nn.Module, length: int, seed: int = 0) -> torch.Tensor:
    ids = torch.randint(0, 250, (2, length), generator=torch.Generator().manual_seed(seed))
    with torch.inference_mode():
        return model(ids).logits.float()


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(0, 5),
    width=st.integers(1, 4),
    seed=st.integers(0, 1_000),
    exponents=st.sampled_from([(0, 3), (100, 140), (250, 256)]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float64]),
)
def test_numbers_are_those_of_the_definition(rows, width, seed, exponents, dtype):
    """All exponents are tested, including subnormal numbers and overflow."""
    generator = torch.Generator().manual_seed(seed)
    blocks = torch.randint(256, (rows, width, 16), dtype=torch.uint8, generator=generator)
    scales = torch.randint(*exponents, (rows, width), dtype=torch.uint8, generator=generator)
    found = decode(blocks, scales, torch.empty(rows, 32 * width, dtype=dtype))
    assert torch.equal(found.nan_to_num(7.0), decoded(blocks, scales).to(dtype).nan_to_num(7.0))


@settings(max_examples=40, deadline=None)
@given(tokens=st.integers(1, 40), num_experts=st.integers(2, 20), seed=st.integers(0, 1_000))
def test_experts_decoded_together_give_the_outputs_of_each(tokens, num_experts, seed):
    """A GPU decodes several together; here a CPU does."""
    generator = torch.Generator().manual_seed(seed)
    experts = PackedExperts(tiny_config(num_experts=num_experts), torch.float32)
    for name, weight in experts.named_parameters():
        low, high = (120, 128) if name.endswith("_scales") else (0, 256)
        noise = torch.randn(weight.shape, generator=generator)
        whole = torch.randint(low, high, weight.shape, dtype=torch.uint8, generator=generator)
        weight.data = noise if weight.dtype == torch.float32 else whole
    chosen = torch.stack([torch.randperm(num_experts, generator=generator)[:2] for _ in range(tokens)])
    arguments = torch.randn(tokens, 32, generator=generator), chosen, torch.rand(tokens, 2, generator=generator)
    expected = experts(*arguments)
    experts._one_by_one = experts._together
    torch.testing.assert_close(experts(*arguments), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("sizes", [(15, 1, 32), (16, 1, 31), (16, 2, 32), (0, 1, 0), (32, 1, 32)])
def test_sizes_that_do_not_go_together_are_refused(sizes):
    packed, exponents, numbers = sizes
    arrays = [torch.zeros(size, dtype=torch.uint8).numpy() for size in (packed, exponents)]
    with pytest.raises(ValueError):  # noqa: PT011 - the caller is our own code
        _core.decode_mxfp4(*arrays, torch.zeros(numbers).numpy())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_logits_are_those_of_transformers_decoded_model(checkpoint, dtype):
    whole = AutoModelForCausalLM.from_pretrained(
        checkpoint, dtype=getattr(torch, dtype), quantization_config=Mxfp4Config(dequantize=True)
    )
    for resident in range(4):
        target = load(checkpoint, resident, dtype)
        assert target.offload.plan.is_packed
        for length in (1, 40, 1, 2):
            expected, found = logits(whole, length), logits(target.model, length)
            error, size = (found - expected).norm(), expected.norm()
            assert error <= size * (1e-6 if dtype == "float32" else 2e-2)
        target.close()


@pytest.mark.parametrize("batch", [1, 8])
def test_texts_are_those_of_the_decoded_model_in_memory(checkpoint, batch):
    whole, target = load(checkpoint), load(checkpoint, 1)
    assert whole.offload is None
    jobs = mixed_jobs(10)[:: 2 if batch == 1 else 1]
    outcome = decode_jobs(target, jobs, None, 8, max_batch_size=batch, strategy="tree")
    assert outcome.outputs == [remembered(whole, job) for job in jobs]
    target.close()


def test_weights_are_packed_on_the_way_and_in_memory(checkpoint):
    target = load(checkpoint, 1, "bfloat16")
    offload = target.offload
    experts = target.model.model.layers[0].mlp.experts
    assert isinstance(experts, PackedExperts)
    packed = 17 * (128 * 32 + 32 * 64) // 32
    assert offload.plan.unit_bytes == packed + 2 * (128 + 32)
    assert len(experts.gate_up_proj_blocks) == offload.plan.num_slots == 4
    before, wanted, found = offload.num_bytes, offload.num_wanted, offload.num_found
    logits(target.model, 1)
    num_read = offload.num_wanted - wanted - (offload.num_found - found)
    assert 0 < num_read * packed <= offload.num_bytes - before <= (16 + 8) * packed
    target.close()


def test_a_model_whose_packed_experts_all_fit_reads_them_once(checkpoint, monkeypatch):
    """There is no memory for the decoded experts here."""
    monkeypatch.setattr(placement, "anonymous_bytes", lambda: 0)
    target = TargetModel.load(VerifierConfig(model_name=str(checkpoint), num_threads=1, memory_budget=400_000))
    assert target.offload.num_slots >= target.offload.plan.num_units == 16
    logits(target.model, 200)
    before = target.offload.num_bytes
    logits(target.model, 200, seed=1)
    assert target.offload.num_bytes - before < 0.2 * before
    target.close()


def test_a_plan_of_the_released_shapes_needs_no_weights(monkeypatch):
    monkeypatch.setattr(placement, "anonymous_bytes", lambda: 300_000_000)  # this process may have any size
    config = full_config()
    config.quantization_config = {"quant_method": "mxfp4"}
    plan = plan_for(config, torch.bfloat16, VerifierConfig(memory_budget=6_300_000_000, max_batch_size=1))
    assert plan.is_packed
    assert plan.num_units == 24 * 32
    assert plan.unit_bytes == 17 * 3 * 2880 * 2880 // 32 + 2 * 3 * 2880
    assert plan.least_slots <= plan.num_slots < 200
    assert plan_for(config, torch.bfloat16, VerifierConfig(memory_budget=10**11)) is None


def broken(folder: Path, part: str, change) -> Path:
    """Write a checkpoint, then change a tensor of its second layer."""
    written(folder)
    path = folder / "model-00002-of-00005.safetensors"
    weights = load_file(path)
    name = f"model.layers.1.mlp.experts.{part}"
    weights[name] = change(weights[name])
    save_file(weights, path, metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("gate_up_proj_blocks", lambda each: each[:, :, :, :8].contiguous()),
        ("gate_up_proj_scales", lambda each: each[:3].contiguous()),
        ("down_proj_blocks", lambda each: each.transpose(1, 2).contiguous()),
        ("down_proj_scales", lambda each: each.float()),
        ("down_proj_blocks", lambda each: each.float()),
        ("down_proj_bias", lambda each: each[:, 1:].contiguous()),
    ],
)
@pytest.mark.parametrize("resident_layers", [1, None])
def test_tensors_of_another_shape_or_type_are_refused(tmp_path, part, change, resident_layers):
    """Streamed or resident, the error names the weight; the doctor's check needs no weights in memory."""
    folder = broken(tmp_path, part, change)
    config = AutoConfig.from_pretrained(folder)
    for check in (partial(load, folder, resident_layers), partial(require_packed_weights, folder, config)):
        with pytest.raises(ConfigError) as caught:
            check()
        assert caught.value.field == "verifier.model_name"
        assert part in str(caught.value)


def test_a_file_whose_header_lies_is_refused(tmp_path):
    path = written(tmp_path) / "model-00002-of-00005.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[:-64])
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, 1)
    assert caught.value.field == "verifier.model_name"


def test_sizes_that_are_no_whole_blocks_are_refused(tmp_path):
    described = json.loads((written(tmp_path) / "config.json").read_text(encoding="utf-8"))
    (tmp_path / "config.json").write_text(json.dumps(described | {"hidden_size": 33}), encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, 1)
    assert caught.value.field == "verifier.model_name"


def test_other_quantised_weights_are_refused_by_name(tmp_path):
    described = json.loads((written(tmp_path) / "config.json").read_text(encoding="utf-8"))
    described["quantization_config"]["quant_method"] = "gptq"
    (tmp_path / "config.json").write_text(json.dumps(described), encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, 1)
    assert "MXFP4" in str(caught.value)


def test_a_stretch_of_rows_at_a_time_gives_the_same(checkpoint, monkeypatch):
    target = load(checkpoint, 1)
    expected = logits(target.model, 30)
    monkeypatch.setattr(half_precision, "_SPACE_BYTES", 700)
    torch.testing.assert_close(logits(target.model, 30), expected)
    target.close()
