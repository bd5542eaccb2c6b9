"""Draft models for tests: the target with noise on its weights, at a fixed price."""

from __future__ import annotations

import copy

import numpy as np
import torch

from speculant_graph.config import DraftConfig
from speculant_graph.types import Drafter
from speculant_verifier.draft_model import ModelDrafter
from speculant_verifier.draft_model.passes import DraftPasses
from speculant_verifier.draft_model.price import DraftPrice
from speculant_verifier.model import TargetModel


def noisy(target: TargetModel, noise: float, seed: int = 0) -> TargetModel:
    """A model that is right now and then."""
    torch.manual_seed(seed)
    model = copy.deepcopy(target.model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * parameter.std() * noise)
    return TargetModel(model, target._tokenizer, "noisy")


def flat(seconds: float, slope: float):
    """Passes that take so long, and a little more for every token."""
    return lambda num_rows, width: seconds + slope * np.arange(width + 1.0)


class FixedPrice(DraftPrice):
    """What no clock changes, and no allowance ends."""

    def note(self, expected_s: float, measured_s: float) -> None:
        pass

    def note_target(self, num_rows: int, width: int, seconds: float) -> None:
        pass


def model_drafter(
    model: TargetModel,
    ngrams: Drafter | None = None,
    *,
    budget: int = 8,
    rows: int = 8,
    draft_s: float = 1e-9,
    **options,
) -> ModelDrafter:
    """A drafter whose model costs next to nothing, so that it is always asked, unless said otherwise."""
    passes = DraftPasses(model, rows)
    price = FixedPrice(flat(1e6, 1.0), flat(draft_s, draft_s))
    config = DraftConfig(k=budget, strategy="model" if ngrams is None else "tree", **options)
    return ModelDrafter(passes, price, config, ngrams)
