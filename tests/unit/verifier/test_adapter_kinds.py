"""Kinds of LoRA adapters: each gives the same results merged as in peft, or is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model

from speculant_graph.config import DraftModelConfig, TrainConfig, VerifierConfig
from speculant_graph.errors import ConfigError
from speculant_verifier.draft_model.adapter_files import with_adapter
from speculant_verifier.draft_model.factory import load_base
from speculant_verifier.model import TargetModel
from speculant_verifier.training.examples import make_example
from speculant_verifier.training.trainer import Trainer, train_adapter
from support import training
from support.tiny_models import byte_tokenizer, pack_experts, tiny_gpt_oss, tiny_model

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::RuntimeWarning")
LAYERS = ["q_proj", "v_proj", "down_proj"]
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "gaussian": {"init_lora_weights": "gaussian"},
    "orthogonal": {"init_lora_weights": "orthogonal"},
    "eva": {"init_lora_weights": "eva"},
    "mica": {"init_lora_weights": "mica"},
    "no start": {"init_lora_weights": False},
    "rslora": {"use_rslora": True},
    "ranks": {"rank_pattern": {"q_proj": 2, "layers.1.mlp.down_proj": 6}},
    "alphas": {"alpha_pattern": {"q_proj": 32}},
    "dora": {"use_dora": True},
    "one layer": {"layers_to_transform": [1]},
    "pattern": {"target_modules": r".*layers\.1.*_proj", "exclude_modules": ["k_proj"]},
    "biases": {"bias": "all"},
    "bias of its own": {"lora_bias": True},
    "head": {"target_modules": [*LAYERS, "lm_head"]},
    "embedding": {"target_modules": [*LAYERS, "embed_tokens"]},
    "both": {"target_modules": ["embed_tokens", "lm_head"]},
    "tied adapters": {"target_modules": ["embed_tokens"], "ensure_weight_tying": True},
    "dora of both": {"target_modules": ["embed_tokens", "lm_head"], "use_dora": True},
    "whole head": {"modules_to_save": ["lm_head"]},
    "whole embedding": {"modules_to_save": ["embed_tokens"]},
    "whole tied embedding": {"modules_to_save": ["embed_tokens"], "ensure_weight_tying": True},
    "tokens": {"trainable_token_indices": [3, 5, 7]},
    "experts": {"target_modules": None, "target_parameters": ["experts.gate_up_proj", "experts.down_proj"]},
}


def base(kind: str, *, tied: bool) -> Any:
    model = tiny_model({"experts": "qwen3_moe", "biases": "qwen2"}.get(kind, "llama"), num_layers=2).model
    model.config.tie_word_embeddings = tied
    if tied:
        model.lm_head.weight = model.model.embed_tokens.weight
    return model.eval()


def logits(model: Any) -> torch.Tensor:
    with torch.inference_mode():
        return model(torch.arange(3, 20)[None]).logits[0]


def write_adapter(folder: Path, kind: str, *, tied: bool) -> None:
    """Write an adapter with random weights, with peft only."""
    settings = {"target_modules": LAYERS, "r": 4, "lora_alpha": 8, "task_type": "CAUSAL_LM"} | KINDS[kind]
    adapted = get_peft_model(base(kind, tied=tied), LoraConfig(**settings))
    torch.manual_seed(1)
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            parameter.data += 0.1 * torch.randn_like(parameter)
    adapted.save_pretrained(str(folder))


def change_config(folder: Path, **values: object) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_merged_adapter_computes_what_peft_computes(tmp_path: Path, kind: str, tied: bool) -> None:
    write_adapter(tmp_path, kind, tied=tied)
    model = base(kind, tied=tied)
    plain = logits(model)
    expected = logits(PeftModel.from_pretrained(base(kind, tied=tied), str(tmp_path)))
    merged, _ = with_adapter(model, "", tmp_path)
    torch.testing.assert_close(logits(merged), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(logits(model), plain, rtol=0, atol=0)
    assert float((expected - plain).abs().max()) > 0.5
    shares = merged.lm_head.weight is merged.model.embed_tokens.weight
    assert shares == merged.config.tie_word_embeddings == (tied and torch.equal(*_ends(merged)))
    merged.tie_weights()
    target = TargetModel(merged, byte_tokenizer(), "tiny")
    found = target.forward([list(range(3, 20))], target.new_cache(1), [0])[0, -1]
    torch.testing.assert_close(found, expected[-1], rtol=1e-4, atol=1e-4)


def _ends(model: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return model.lm_head.weight, model.model.embed_tokens.weight


def test_a_setting_that_peft_does_not_know_is_named_and_ignored(tmp_path: Path, warnings: list[str]) -> None:
    write_adapter(tmp_path, "plain", tied=False)
    expected = logits(with_adapter(base("plain", tied=False), "", tmp_path)[0])
    assert not warnings
    change_config(tmp_path, setting_of_tomorrow={"a": 1})
    found = logits(with_adapter(base("plain", tied=False), "", tmp_path)[0])
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert [line for line in warnings if "setting_of_tomorrow is unknown" in line] == warnings


@pytest.mark.parametrize("start", ["pissa", "pissa_niter_4", "olora", "corda", "loftq", "lora_ga", "of tomorrow", 7])
def test_starts_that_change_the_base_model_are_refused_by_name(tmp_path: Path, start: object) -> None:
    write_adapter(tmp_path, "plain", tied=False)
    change_config(tmp_path, init_lora_weights=start)
    with pytest.raises(ConfigError) as caught:
        with_adapter(base("plain", tied=False), "", tmp_path)
    assert f"init_lora_weights = {start!r}" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("alora_invocation_tokens", [1, 2]),
        ("layer_replication", [[0, 2], [0, 2]]),
        ("use_qalora", True),
        ("arrow_config", {"top_k": 2}),
        ("kasa_config", {"a": 1}),
        ("megatron_config", {"a": 1}),
    ],
)
def test_what_is_more_than_added_numbers_is_refused_by_name(tmp_path: Path, name: str, value: object) -> None:
    write_adapter(tmp_path, "plain", tied=False)
    change_config(tmp_path, **{name: value})
    with pytest.raises(ConfigError) as caught:
        with_adapter(base("plain", tied=False), "", tmp_path)
    assert name in str(caught.value)


def test_an_adapter_of_a_base_in_four_bits(tmp_path: Path) -> None:
    """It is trained on the decoded weights, and merged into them."""
    config = DraftModelConfig(name=str(tmp_path / "packed"))
    tiny = tiny_gpt_oss(seed=1)
    tiny.model.save_pretrained(config.name)
    tiny.tokenizer.save_pretrained(config.name)
    pack_experts(Path(config.name))
    loading = VerifierConfig(device="cpu", num_threads=1)
    records = training.recorded(tiny_gpt_oss(), num_records=4)
    settings = TrainConfig(rank=4, epochs=20, learning_rate=4e-2)
    result = train_adapter(load_base(config, loading)[0], config.name, records, settings, tmp_path / "trained")
    assert result.candidate is not None
    base = load_base(config, loading)[0]
    adapted, _ = with_adapter(base, config.name, result.candidate)
    judges = [make_example(each, 512) for each in result.held_out]
    found = Trainer(adapted, config.name, settings, tmp_path / "again").evaluate(judges)
    assert found.loss == pytest.approx(result.after.loss, rel=1e-4)


@pytest.mark.parametrize("can_unpack", [True, False])
def test_packed_weights_are_unpacked_in_the_copy_alone(tmp_path: Path, can_unpack: bool, monkeypatch) -> None:
    folder = training.write_adapter(tmp_path, tiny_model("llama").model)
    packed = tiny_model("llama").model
    packed.is_quantized = True

    def unpacked(model: Any) -> Any:
        if not can_unpack:
            raise NotImplementedError("no implementation")
        model.is_quantized = False
        return model

    monkeypatch.setattr(type(packed), "dequantize", unpacked)
    if can_unpack:
        adapted, _ = with_adapter(packed, "tiny", folder)
        expected, _ = with_adapter(tiny_model("llama").model, "tiny", folder)
        assert not adapted.is_quantized
        for name, weights in expected.state_dict().items():
            assert torch.equal(adapted.state_dict()[name], weights)
    else:
        with pytest.raises(ConfigError):
            with_adapter(packed, "tiny", folder)
    assert packed.is_quantized
