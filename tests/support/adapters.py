"""A verifier whose draft model is the target, with adapters, for tests of adapter swaps."""

from __future__ import annotations

from pathlib import Path

from speculant_graph.budget import StepBudget
from speculant_graph.config import DraftConfig, DraftModelConfig, VerifierConfig
from speculant_verifier.decoder import SpeculativeDecoder
from speculant_verifier.draft_model import ModelDrafter
from support.draft_models import FixedPrice, flat
from support.tiny_models import tiny_model
from support.training import write_adapter

NUM_ROWS = 16


def adapter_folders(folder: Path) -> dict[str, Path]:
    """Write a checkpoint and three adapters; return the adapters by name.

    ``small`` changes little, ``random`` makes the model useless, and ``other`` is for another base model.
    """
    target = tiny_model("llama")
    target.model.save_pretrained(folder / "tiny")
    target.tokenizer.save_pretrained(folder / "tiny")
    return {
        "small": write_adapter(folder / "small", tiny_model("llama").model, std=0.0003),
        "random": write_adapter(folder / "random", tiny_model("llama").model, std=2.0, seed=1),
        "other": write_adapter(folder / "other", tiny_model("qwen2").model, "another"),
    }


def adapted_decoder(folder: Path, folders: dict[str, Path]) -> SpeculativeDecoder:
    """Return a decoder whose draft model costs almost nothing, so that it runs at every step."""
    decoder = SpeculativeDecoder(
        verifier_config=VerifierConfig(
            model_name=str(folder / "tiny"), device="cpu", num_threads=1, measure_costs=False, max_batch_size=NUM_ROWS
        ),
        draft_config=DraftConfig(strategy="model", k=4),
        draft_model=DraftModelConfig(name=str(folder / "tiny"), adapters=folders),
    )
    assert isinstance(decoder.drafter, ModelDrafter)
    decoder.drafter._price = FixedPrice(StepBudget(flat(1e6, 1.0)), flat(1e-9, 1e-9))
    return decoder
