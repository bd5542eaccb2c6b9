"""Training of an adapter with tiny models: its start, its result, and the unchanged base model."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file

import speculant_verifier.training.trainer as trainer_module
from speculant_graph.config import DraftModelConfig, TrainConfig, VerifierConfig
from speculant_graph.errors import ConfigError
from speculant_verifier.draft_model.adapter_files import WEIGHTS_FILE, read_adapter, with_adapter
from speculant_verifier.draft_model.factory import load_base
from speculant_verifier.training.examples import Example, make_example
from speculant_verifier.training.trainer import STRENGTH, Evaluation, Trainer, TrainingResult, train_adapter
from support.tiny_models import pack_experts, tiny_gpt_oss, tiny_model
from support.training import recorded

CONFIG = TrainConfig(rank=4, epochs=12, learning_rate=4e-2)


def base(family: str = "llama", seed: int = 1) -> Any:
    """Return a draft model as after loading, with our own attention."""
    return (tiny_gpt_oss(seed=seed) if family == "gpt_oss" else tiny_model(family, seed)).model


def four_bit_base(folder: Path) -> Callable[[], Any]:
    """Write a tiny gpt-oss with experts in MXFP4; return a function that loads it as a draft model."""
    tiny = tiny_gpt_oss(seed=1)
    tiny.model.save_pretrained(folder)
    tiny.tokenizer.save_pretrained(folder)
    pack_experts(folder)
    loading = VerifierConfig(device="cpu", num_threads=1)
    return lambda: load_base(DraftModelConfig(name=str(folder)), loading)[0]


@pytest.fixture(scope="module")
def records() -> list:
    return recorded(tiny_model("llama"))


@pytest.fixture(scope="module")
def examples(records) -> list[Example]:
    return [make_example(each, 512) for each in records]


def train(folder: Path, records: list, model: Any = None, config: TrainConfig = CONFIG, **more: Any) -> TrainingResult:
    return train_adapter(model or base(), "tiny-llama", records, config, folder, **more)


@pytest.mark.parametrize("family", ["llama", "mistral", "gpt_oss"])
def test_gradients_are_those_of_eager_attention(tmp_path: Path, examples, family: str, monkeypatch) -> None:
    """Gradients are also the same with activation checkpointing."""

    def gradients(attention: str | None, large: int) -> dict[str, torch.Tensor]:
        monkeypatch.setattr(trainer_module, "LARGE", large)
        model = base(family)
        assert model.config._attn_implementation == "speculant"
        trainer = Trainer(model, "tiny", CONFIG, tmp_path)
        assert model.is_activation_checkpointing == (large == 0)
        if attention is not None:
            model.set_attn_implementation(attention)
        torch.manual_seed(1)
        for name, parameter in trainer.model.named_parameters():
            if ".lora_B." in name:
                parameter.data.normal_(std=0.1)
        model.train()
        trainer.loss(trainer.logits(examples[0]), examples[0]).backward()
        return {name: each.grad for name, each in trainer.model.named_parameters() if each.requires_grad}

    expected = gradients("eager", 10**9)
    for found in (gradients(None, 10**9), gradients(None, 0)):
        for name, gradient in expected.items():
            torch.testing.assert_close(
                found[name], gradient, rtol=1e-3, atol=1e-3 * float(gradient.abs().max()), msg=name
            )


def test_a_training_learns_what_is_repeated_and_what_is_saved_is_what_was_measured(tmp_path: Path, records) -> None:
    same = [replace(records[0], request_id=f"r{i}", prompt=(i, *records[0].prompt)) for i in range(4)]
    seen: list[str] = []
    model = base()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    result = train(
        tmp_path / "a",
        same,
        model,
        CONFIG.model_copy(update={"epochs": 40}),
        report=seen.append,
    )
    assert result.after.loss < 0.5 * result.before.loss
    assert result.after.acceptance > result.before.acceptance + 0.2
    assert result.num_steps == 15
    assert [line.partition(":")[0] for line in seen] == [f"step {step}/15" for step in (2, 4, 6, 8, 10, 12, 14, 15)]
    assert result.num_tokens == 120 * 24
    assert len(result.held_out) == 1
    assert result.end is None
    assert result.candidate is not None
    assert read_adapter(result.candidate).note["loss"] == result.after.loss
    assert [path.name for path in (tmp_path / "a").iterdir()] == [result.candidate.name]
    after = model.state_dict()
    for name, tensor in before.items():
        found = after[name] if name in after else after[name.replace(".weight", ".base_layer.weight")]
        assert torch.equal(found, tensor), "the base stays as it was"
    # The adapter loads in plain peft, and when merged it reproduces the measured loss.
    plain = base()
    plain.set_attn_implementation("sdpa")
    # A promise, but not ours: only this warning is expected.
    with pytest.warns(FutureWarning, match="is_gradient_checkpointing"):
        PeftModel.from_pretrained(plain, str(result.candidate))
    judges = [make_example(each, 512) for each in result.held_out]
    again = Trainer(with_adapter(base(), "tiny-llama", result.candidate)[0], "tiny-llama", CONFIG, tmp_path).evaluate(
        judges
    )
    assert again.loss == pytest.approx(result.after.loss, rel=1e-5)
    assert again.acceptance == result.after.acceptance


def test_a_training_can_be_repeated(tmp_path: Path, records) -> None:
    runs = [train(tmp_path / name, records) for name in "ab"]
    assert read_adapter(runs[0].candidate).digest == read_adapter(runs[1].candidate).digest


@pytest.mark.parametrize("signal", [KeyboardInterrupt, SystemExit(143)])
def test_an_interrupted_training_keeps_the_best_so_far(tmp_path: Path, records, signal: Any) -> None:
    def interrupt(line: str) -> None:
        if "best so far" in line:
            raise signal

    result = train(tmp_path, records, config=CONFIG.model_copy(update={"epochs": 40}), report=interrupt)
    assert isinstance(result.end, (KeyboardInterrupt, SystemExit))
    assert result.num_steps < 10
    assert result.candidate is not None
    with_adapter(base(), "tiny-llama", result.candidate)


@pytest.mark.parametrize("learning_rate", [1e-12, 1e25])
def test_where_nothing_is_better_there_is_no_candidate(tmp_path: Path, records, learning_rate: float) -> None:
    """With the lower rate nothing changes; with the higher rate numbers soon overflow, which ends the training."""
    result = train(tmp_path, records, config=TrainConfig(rank=4, learning_rate=learning_rate, epochs=60))
    assert result.candidate is None
    assert math.isfinite(result.after.loss)
    assert result.after == result.before
    with pytest.raises(ConfigError):
        train(tmp_path, records[:1])


@pytest.mark.parametrize("family", ["llama", "mistral", "gpt_oss", "mxfp4"])
def test_a_fresh_adapter_changes_nothing(tmp_path: Path, examples, family: str) -> None:
    """B is zero, so logits equal the base's to the bit, also after publishing and merging, and with a 4-bit base."""
    opened = partial(base, family) if family != "mxfp4" else four_bit_base(tmp_path / "packed")
    plain = opened()
    plain.set_attn_implementation("sdpa" if plain._supports_sdpa else "eager")
    trainer = Trainer(opened(), "tiny", CONFIG, tmp_path)
    trainer.save(1, Evaluation(1.0, 0.5))
    assert trainer.best is not None
    merged = with_adapter(opened(), "tiny", trainer.best[0])[0]
    merged.set_attn_implementation(plain.config._attn_implementation)
    token_ids = torch.from_numpy(examples[0].token_ids[None])
    with torch.no_grad():
        expected = plain(token_ids).logits
        for model in (trainer.model.eval(), merged):
            assert torch.equal(model(token_ids).logits, expected)


def test_a_training_goes_on_from_an_adapter(tmp_path: Path, records) -> None:
    """It starts with that adapter's loss and rank, and again only a share of the change is published."""
    same = [replace(records[0], request_id=f"r{i}", prompt=(i, *records[0].prompt)) for i in range(4)]
    first = train(tmp_path / "a", same, config=CONFIG.model_copy(update={"epochs": 20}))
    assert first.candidate is not None
    start = read_adapter(first.candidate)
    config = CONFIG.model_copy(update={"rank": 7, "epochs": 20})
    second = train(tmp_path / "b", same, config=config, start=start)
    assert second.before.loss == pytest.approx(first.after.loss, rel=1e-5)
    assert second.after.loss < second.before.loss
    assert second.candidate is not None
    assert read_adapter(second.candidate).config.r == CONFIG.rank
    assert second.documents == first.documents
    assert len(second.documents) == 3
    weights = {name: load_file(each / WEIGHTS_FILE) for name, each in (("a", first.candidate), ("b", second.candidate))}
    trainer = Trainer(base(), "tiny-llama", CONFIG, tmp_path / "c", start)
    with torch.no_grad():
        for weight in trainer._weights:
            weight.add_(1.0)
    trainer.save(1, Evaluation(1.0, 0.5))
    assert trainer.best is not None
    for name, tensor in load_file(trainer.best[0] / WEIGHTS_FILE).items():
        torch.testing.assert_close(tensor, weights["a"][name] + STRENGTH)
    with pytest.raises(ConfigError):
        train(tmp_path / "d", same, base("gpt_oss"), start=start)
