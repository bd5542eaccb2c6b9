"""Draft models for tests: the target with noise on its weights, at a fixed cost."""

from __future__ import annotations

import copy

import numpy as np
import torch

from speculant_graph.budget import StepBudget
from speculant_graph.config import DraftConfig
from speculant_graph.types import Drafter
from speculant_verifier.draft_model import ModelDrafter
from speculant_verifier.draft_model.draft_budget import DraftPrice
from speculant_verifier.draft_model.passes import DraftPasses
from speculant_verifier.model import TargetModel


def noisy(target: TargetModel, noise: float, seed: int = 0) -> TargetModel:
    """Return a copy of the target with noise on its weights, which agrees with it now and then."""
    torch.manual_seed(seed)
    model = copy.deepcopy(target.model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * parameter.std() * noise)
    return TargetModel(model, target._tokenizer, "noisy")


class flat:
    """A pass cost with a fixed part, and a small part for every token of a row."""

    def __init__(self, seconds: float, slope: float) -> None:
        self._seconds, self._slope = seconds, slope

    def seconds(self, num_rows: int, most_tokens: int) -> np.ndarray:
        return self._seconds + self._slope * np.maximum(np.arange(most_tokens + 1), num_rows) / num_rows

    def observe(self, num_rows: int, num_tokens: int, seconds: float) -> None:
        """Do nothing."""


class FixedBudget(StepBudget):
    """A step budget that ignores measured times, so that a test needs the same number of passes on every machine."""

    def observe_plain(self, num_rows: int, pass_s: float) -> None:
        """Do nothing."""

    def observe(
        self, num_rows: int, num_tokens: int, num_new: int, pass_s: float, draft_s: float, num_drafted: int
    ) -> None:
        """Do nothing."""


class FixedPrice(DraftPrice):
    """A draft price without an allowance that could run out."""

    def record_target(self, seconds: float) -> None:
        pass


def model_drafter(
    model: TargetModel,
    ngrams: Drafter | None = None,
    *,
    budget: int = 8,
    rows: int = 8,
    draft_s: float = 1e-9,
    passes: DraftPasses | None = None,
    **options,
) -> ModelDrafter:
    """Return a drafter whose model by default costs almost nothing, so that it always runs."""
    price = FixedPrice(StepBudget(flat(1e6, 1.0)), flat(draft_s, draft_s))
    options.setdefault("strategy", "model" if ngrams is None else "tree")
    return ModelDrafter(passes or DraftPasses(model, rows), price, DraftConfig(k=budget, **options), ngrams)
