"""A loaded model whose weights are partly elsewhere."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from accelerate.hooks import remove_hook_from_submodules
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.utils import logging

from speculant_verifier.offload.experts import ExpertPool
from speculant_verifier.offload.files import PinnedWeights, WeightReader, stored_tensors
from speculant_verifier.offload.layers import LayerStream
from speculant_verifier.offload.plan import Plan

OFFLOAD = "_speculant_offload"
"""Attribute of a loaded model that holds its :class:`Offload`."""


@dataclass(frozen=True, slots=True)
class OffloadStatistics:
    """What was read since the model was loaded."""

    stall_s: float = 0.0
    """Seconds that passes have waited for weights."""
    num_bytes: int = 0
    """Read."""
    num_wanted: int = 0
    """Experts that passes wanted; 0 where layers are streamed."""
    num_found: int = 0
    """Those of them that were in memory, or on their way."""


class Offload:
    """Fetches what a plan does not keep in memory, whenever the model is run."""

    reducible = "weights in memory"

    def __init__(self, model: PreTrainedModel, plan: Plan, folder: tempfile.TemporaryDirectory[str]) -> None:
        """Take over a model that was loaded with the plan's device map.

        Args:
            model: its streamed weights are not there yet.
            plan: what is streamed.
            folder: holds weights that had to be written in another form than the checkpoint's; removed at the end.
        """
        self.plan, self._folder = plan, folder
        self.num_slots = plan.num_slots
        """Units that there is space for now."""
        stored: dict[str, Any] = dict(stored_tensors(_index_of(model)))
        remove_hook_from_submodules(model)
        for parameter in model.parameters():
            if not parameter.is_meta:  # else they are pages of the file, which the system takes away when it likes
                parameter.data = parameter.data.clone()
        like = next(each for each in model.parameters() if not each.is_meta).new_empty(0, dtype=model.dtype)
        reader = WeightReader()
        self._source: WeightReader | PinnedWeights = reader
        modules = [(name, model.get_submodule(name)) for name in plan.streamed]
        if like.is_cuda:
            self._source = pinned = PinnedWeights(like.device)
            names = [f"{name}.{inner}" for name, module in modules for inner, _ in module.named_parameters()]
            for name in logging.tqdm(names, desc="Reading weights"):
                stored[name] = pinned.hold(stored[name], like.dtype, reader)
            reader.close()
        self._stream: LayerStream | ExpertPool
        if plan.unit == "layer":
            layers = [(layer, _weights_of(layer, name, stored)) for name, layer in modules]
            self._stream = LayerStream(layers, plan.num_slots, like, self._source)
        else:
            experts = [
                (module, {inner: stored[f"{name}.{inner}"] for inner, _ in module.named_parameters()})
                for name, module in modules
            ]
            routers = [_router_of(model.get_submodule(name.rpartition(".")[0]), module) for name, module in modules]
            self._stream = ExpertPool(experts, plan.num_slots, like, self._source, routers)

    @property
    def stall_s(self) -> float:
        """Seconds that passes have waited for weights."""
        return self._source.stall_s

    @property
    def statistics(self) -> OffloadStatistics:
        """What was read."""
        source, stream = self._source, self._stream
        return OffloadStatistics(source.stall_s, source.num_bytes, stream.num_wanted, stream.num_found)

    def resize(self, num_slots: int) -> None:
        """Keep fewer units in memory than planned, or more again; not while a pass runs."""
        self._stream.resize(num_slots)
        self.num_slots = num_slots

    def reduce(self) -> int | None:
        """Keep fewer by a quarter of what can be given up; bytes that were freed, or None if nothing is left to."""
        before, least = self.num_slots, self.plan.least_slots
        if before <= least or not self._stream.gives_back:
            return None
        self.resize(max(least, before - self._degree))
        return (before - self.num_slots) * self.plan.unit_bytes

    def restore(self) -> None:
        """Keep a degree more."""
        self.resize(min(self.plan.num_slots, self.num_slots + self._degree))

    @property
    def _degree(self) -> int:
        return -(-(self.plan.num_slots - self.plan.least_slots) // 4)

    def close(self) -> None:
        """Stop reading; the model can't be run any more."""
        self._source.close()
        self._folder.cleanup()


def _router_of(block: nn.Module, experts: nn.Module) -> tuple[Tensor, Tensor | None] | None:
    """Return weight and bias of what chooses a block's experts, which has a row for each; None if nothing looks so."""
    for each in block.children():
        weight = getattr(each, "weight", None)
        if isinstance(weight, Tensor) and weight.ndim == 2 and len(weight) == experts.num_experts:
            return weight, getattr(each, "bias", None)
    return None


def _weights_of(layer: nn.Module, name: str, stored: Mapping[str, Any]) -> list[tuple[nn.Module, str, Any]]:
    """Return of every weight of a layer its module, its name there, and where it is stored."""
    parts = [(*inner.rpartition("."), stored[f"{name}.{inner}"]) for inner, _ in layer.named_parameters()]
    return [(layer.get_submodule(path), last, where) for path, _, last, where in parts]


def _index_of(model: nn.Module) -> dict[str, dict[str, str]]:
    """Return where accelerate would read the streamed weights from."""
    for module in model.modules():
        hook = getattr(module, "_hf_hook", None)
        for each in (hook, *getattr(hook, "hooks", ())):
            weights = getattr(each, "weights_map", None)
            if weights is not None:
                index: dict[str, dict[str, str]] = weights.dataset.index
                return index
    raise AssertionError("nothing is streamed")
