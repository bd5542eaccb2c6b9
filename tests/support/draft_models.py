"""Draft models for tests: the target with noise on its weights, and small worlds in their place."""

from __future__ import annotations

import copy

import numpy as np
import torch

from speculant_graph.config import DraftConfig
from speculant_graph.types import Drafter
from speculant_verifier.draft_model import ModelDrafter
from speculant_verifier.draft_model.drawing import DrawOrder, draw_drafts, shape_of
from speculant_verifier.draft_model.passes import CachedSequence, DraftPasses, TopRows
from speculant_verifier.draft_model.price import DraftPrice
from speculant_verifier.model import TargetModel
from support.rule_worlds import SIZE, World


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
    passes = DraftPasses(model, rows, prefill_chunk=60)
    price = FixedPrice(flat(1e6, 1.0), flat(draft_s, draft_s))
    config = DraftConfig(k=budget, strategy="model" if ngrams is None else "tree", **options)
    return ModelDrafter(passes, price, config, ngrams)


class WorldPasses:
    """What :class:`DraftPasses` does, where a world says what the model holds likely."""

    def __init__(self, world: World) -> None:
        self._ids = np.argsort(-world.q, axis=1, kind="stable")
        with np.errstate(divide="ignore"):
            self._logprobs = np.log(np.take_along_axis(world.q.astype(np.float64), self._ids, 1))
        self._contexts: dict[int, list[int]] = {}

    def run(self, sequences, nodes, width) -> list[TopRows]:
        rows = []
        for sequence, new in zip(sequences, nodes, strict=True):
            contexts = self._contexts.setdefault(id(sequence), [0])
            first = len(contexts) if sequence.is_written else 0
            for parent, token in new:
                contexts.append(SIZE * contexts[parent] + 1 + token)
                sequence.tokens.append(token)
            sequence.is_written = True
            rows.append(TopRows(self._ids[contexts[first:]], self._logprobs[contexts[first:]]))
        return rows


def drawn_by_world(world: World, count: int, siblings: str, temperature: float, most: int, parents=None):
    """Drafts that the drawing code of the draft model makes, one for every seed."""
    shape = shape_of(siblings, 6, 2, 2) if parents is None else parents
    for start in range(0, count, 500):
        orders = [
            DrawOrder(CachedSequence(0), 0, seed, siblings, shape, temperature, most)
            for seed in range(start, min(count, start + 500))
        ]
        yield from draw_drafts(WorldPasses(world), orders)
