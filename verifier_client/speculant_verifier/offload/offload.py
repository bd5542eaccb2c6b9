"""Streams weights of a loaded model: experts, or whole layers that are fetched while other layers are computed."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from accelerate.hooks import remove_hook_from_submodules
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.utils import logging

from speculant_verifier.offload.experts import ExpertPool
from speculant_verifier.offload.host_memory import HostMemory
from speculant_verifier.offload.placement import Plan
from speculant_verifier.offload.weight_files import (
    PinnedWeights,
    StoredTensor,
    WeightReader,
    new_space,
    require_same,
    stored_tensors,
    type_in_memory,
)

_Weights = Sequence[tuple[nn.Module, str, StoredTensor | Tensor]]


class LayerStream:
    """Keeps as many layers as possible resident, each in its own slab of memory, and streams the others.

    Streamed layers are fetched cyclically, in the order of the forward pass, into two slabs. Once a streamed layer is
    computed, its slab receives the next streamed layer. At the end of a pass, the slabs receive the first streamed
    layers for the next pass. A pass allocates no memory for weights.
    """

    num_wanted = num_found = 0
    """Number of experts that passes needed, and number of experts found in memory; both are always 0, because whole
    layers are streamed."""
    gives_back = True
    """Whether reducing the number of slots frees memory."""

    def __init__(
        self,
        layers: Sequence[tuple[nn.Module, _Weights]],
        num_slots: int,
        like: Tensor,
        source: WeightReader | PinnedWeights | HostMemory,
    ) -> None:
        """Set up the stream for layers and their weights; slabs have the dtype and the device of ``like``."""
        self._source, self._layers = source, layers
        self._size = max(sum(_padded(stored) for _, _, stored in weights) for _, weights in layers)
        self._slabs = [new_space((self._size,), like)[0] for _ in range(2)]
        self._own: dict[int, Tensor] = {}  # slabs of resident layers
        self._turn: list[int] = []  # layers that are fetched
        self._fetching: dict[int, tuple[list[Tensor], list[Any]]] = {}
        self._next = 0  # index of the next streamed layer, counted over all rounds
        self._is_dirty = False  # a pass has ended within a layer, with an error or Ctrl-C
        for index, (layer, _) in enumerate(layers):
            layer.register_forward_pre_hook(lambda *_, index=index: self._before(index))
            layer.register_forward_hook(lambda *_, index=index: self._after(index))
        self.resize(num_slots, partial(logging.tqdm, desc="Reading weights"))

    def resize(self, num_slots: int, progress: Callable[[list[int]], Iterable[int]] = iter) -> None:
        """Change the number of resident layers; this is possible only between passes.

        Args:
            num_slots: number of slabs, including the two for streamed layers.
            progress: iterates over the indices of layers to read, and shows progress.
        """
        self._source.drain()
        self._fetching.clear()
        total, count = len(self._layers), len(self._layers) - (num_slots - len(self._slabs))
        turn = [each for each in range(total) if (each + 1) * count // total > each * count // total]
        for index in turn:
            self._bind(index, self._views(index, self._slabs[0]))
            self._own.pop(index, None)
        self._is_dirty = True  # until the resident layers are read; layers that could not be read are streamed
        self._turn = [index for index in range(total) if index not in self._own]
        for index in progress([index for index in self._turn if index not in turn]):
            slab, _ = new_space((self._size,), self._slabs[0])
            views = self._views(index, slab)
            self._source.wait(self._begin(index, views))
            self._bind(index, views)
            self._own[index] = slab
            self._turn.remove(index)
        self._start(0)
        self._is_dirty = False

    def _start(self, position: int) -> None:
        """Start fetching layers into both slabs, beginning at a position in the order of streamed layers."""
        self._next = position
        self._fetching.clear()
        for following in range(position, position + len(self._slabs)):
            self._fetch(following)

    def _fetch(self, position: int) -> None:
        index = self._turn[position % len(self._turn)]
        views = self._views(index, self._slabs[position % len(self._slabs)])
        self._fetching[position] = views, self._begin(index, views)

    def _begin(self, index: int, views: Sequence[Tensor]) -> list[Any]:
        weights: Any = self._layers[index][1]
        return self._source.read([(stored, view) for (_, _, stored), view in zip(weights, views, strict=True)])

    def _views(self, index: int, slab: Tensor) -> list[Tensor]:
        views, first = [], 0
        for _, _, stored in self._layers[index][1]:
            views.append(slab[first : first + torch.Size(stored.shape).numel()].view(stored.shape))
            first += _padded(stored)
        return views

    def _bind(self, index: int, views: Sequence[Tensor]) -> None:
        for (module, name, _), view in zip(self._layers[index][1], views, strict=True):
            parameter = module._parameters[name]
            if parameter is None or parameter.is_meta:
                module._parameters[name] = nn.Parameter(view, requires_grad=False)
            else:
                parameter.data = view

    def _before(self, index: int) -> None:
        if index in self._own:
            return
        if self._is_dirty or self._turn[self._next % len(self._turn)] != index:
            self._is_dirty = True
            self._source.drain()
            self._start(self._turn.index(index))
        self._is_dirty = True
        views, started = self._fetching.pop(self._next)
        self._source.wait(started)
        self._bind(index, views)

    def _after(self, index: int) -> None:
        if index not in self._own:
            self._fetch(self._next + len(self._slabs))
            self._next += 1
            self._is_dirty = False


def _padded(stored: StoredTensor | Tensor) -> int:
    """Return a tensor's number of elements, padded so that the next tensor is aligned for vector instructions."""
    return -(-torch.Size(stored.shape).numel() // 64) * 64


OFFLOAD = "_speculant_offload"
"""Name of the attribute that stores a loaded model's :class:`Offload`."""


class Offload:
    """Fetches the streamed weights of a plan whenever the model runs."""

    degradable = "weights in memory"

    def __init__(self, model: PreTrainedModel, plan: Plan, folder: tempfile.TemporaryDirectory[str]) -> None:
        """Set up offloading for a model that was loaded with the plan's device map.

        Args:
            model: the model, without its streamed weights.
            plan: placement of the model's weights.
            folder: temporary folder for weights that could not be read in the checkpoint's format; :meth:`close`
                removes it.
        """
        self.plan, self._folder = plan, folder
        self.num_slots = plan.num_slots
        """Number of layers or experts for which memory is currently available."""
        stored: dict[str, Any] = dict(stored_tensors(_index_of(model)))
        remove_hook_from_submodules(model)
        for parameter in model.parameters():
            if not parameter.is_meta:  # copied, because the system may evict pages of the mapped file at any time
                parameter.data = parameter.data.clone()
        like = next(each for each in model.parameters() if not each.is_meta).new_empty(0, dtype=model.dtype)
        modules = [(name, model.get_submodule(name)) for name in plan.streamed]
        weights = {f"{name}.{inner}": each for name, module in modules for inner, each in module.named_parameters()}
        for name, weight in weights.items():
            require_same(name, stored[name], weight)
        reader, copier = WeightReader(), copier_of(like.device)
        self._source: WeightReader | PinnedWeights | HostMemory = reader
        if copier is not None and plan.host_bytes is not None:
            self._source = HostMemory(plan.host_bytes, reader, copier)
        elif copier is not None:
            self._source = copier
            for name, weight in logging.tqdm(weights.items(), desc="Reading weights"):
                held = copier.space(stored[name].shape, type_in_memory(weight, like.dtype))
                reader.wait(reader.read([(stored[name], held)]))
                stored[name] = held
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
        """Total seconds for which forward passes waited for weights."""
        return self._source.stall_s

    @property
    def num_bytes(self) -> int:
        """Bytes of weights read so far, from the disk or, if it has all streamed weights, from host memory."""
        return self._source.num_bytes

    @property
    def num_wanted(self) -> int:
        """Number of experts that passes have needed; 0 if whole layers are streamed."""
        return self._stream.num_wanted

    @property
    def num_found(self) -> int:
        """Number of needed experts that were already in memory or being read."""
        return self._stream.num_found

    def resize(self, num_slots: int) -> None:
        """Between passes, set the number of layers or experts in memory, which is at most the planned number."""
        self._stream.resize(num_slots)
        self.num_slots = num_slots

    def reduce(self) -> int | None:
        """Free a quarter of the planned slots above the minimum; return the freed bytes, None if none can be freed."""
        before, least = self.num_slots, self.plan.least_slots
        if before <= least or not self._stream.gives_back:
            return None
        self.resize(max(least, before - self._degree))
        return (before - self.num_slots) * self.plan.unit_bytes

    def restore(self) -> None:
        """Undo one reduction."""
        self.resize(min(self.plan.num_slots, self.num_slots + self._degree))

    @property
    def _degree(self) -> int:
        return -(-(self.plan.num_slots - self.plan.least_slots) // 4)

    def close(self) -> None:
        """Stop reading weights; the model can't run afterwards."""
        self._source.close()
        self._folder.cleanup()


def copier_of(device: torch.device) -> PinnedWeights | None:
    """Return an object that copies from host memory to a device; None if the device is the CPU."""
    return PinnedWeights(device) if device.type == "cuda" else None


def _router_of(block: nn.Module, experts: nn.Module) -> tuple[Tensor, Tensor | None] | None:
    """Return the weight and bias of a block's expert router; None if no weight has one row per expert."""
    for each in block.children():
        weight = getattr(each, "weight", None)
        if isinstance(weight, Tensor) and weight.ndim == 2 and len(weight) == experts.num_experts:
            return weight, getattr(each, "bias", None)
    return None


def _weights_of(layer: nn.Module, name: str, stored: Mapping[str, Any]) -> list[tuple[nn.Module, str, Any]]:
    """Return (module, parameter name, location) for every weight of a layer."""
    parts = [(*inner.rpartition("."), stored[f"{name}.{inner}"]) for inner, _ in layer.named_parameters()]
    return [(layer.get_submodule(path), last, where) for path, _, last, where in parts]


def _index_of(model: nn.Module) -> dict[str, dict[str, str]]:
    """Return accelerate's index, which locates the streamed weights in their files."""
    for module in model.modules():
        hook = getattr(module, "_hf_hook", None)
        for each in (hook, *getattr(hook, "hooks", ())):
            weights = getattr(each, "weights_map", None)
            if weights is not None:
                index: dict[str, dict[str, str]] = weights.dataset.index
                return index
    raise AssertionError("nothing is streamed")
