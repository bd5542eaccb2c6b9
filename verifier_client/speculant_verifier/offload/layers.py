"""Decoder layers whose weights are fetched while those before them are computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers.utils import logging

from speculant_verifier.offload.files import StoredTensor, WeightReader
from speculant_verifier.offload.pinned import PinnedTensor, PinnedWeights

_Weights = Sequence[tuple[nn.Module, str, StoredTensor | PinnedTensor]]


class LayerStream:
    """Gives as many layers a slab of memory of their own as it may, and fetches the others in turn.

    Those are fetched in the order of the forward pass, again and again, into two slabs. A slab is free as soon as its
    layer is computed, and the next layer that has none is fetched into it; that of the next pass at the end of this
    one. Nothing is allocated for a pass.
    """

    num_wanted = num_found = 0
    """Experts."""

    def __init__(
        self,
        layers: Sequence[tuple[nn.Module, _Weights]],
        num_slots: int,
        like: Tensor,
        source: WeightReader | PinnedWeights,
    ) -> None:
        """Read the layers that stay.

        Args:
            layers: all layers with their weights, in order.
            num_slots: layers that fit into memory; those that are fetched in turn take two of them.
            like: slabs have its number type and device.
            source: where weights come from.
        """
        self._source, self._layers = source, layers
        self._size = max(sum(_padded(stored) for _, _, stored in weights) for _, weights in layers)
        self._slabs = [like.new_zeros(self._size) for _ in range(2)]
        total, count = len(layers), len(layers) - (num_slots - len(self._slabs))
        self._turn = [each for each in range(total) if (each + 1) * count // total > each * count // total]
        self._resident = set(range(total)) - set(self._turn)
        self._fetching: dict[int, tuple[list[Tensor], list[Any]]] = {}
        self._next = 0  # of them, the one that is computed next, all passes counted
        self._is_torn = False  # a pass has ended within a layer, by an error or Ctrl-C
        for index, (layer, _) in enumerate(layers):
            layer.register_forward_pre_hook(lambda *_, index=index: self._before(index))
            layer.register_forward_hook(lambda *_, index=index: self._after(index))
        for index in self._turn:
            self._bind(index, self._views(index, self._slabs[0]))
        for index in logging.tqdm(sorted(self._resident), desc="Reading weights"):
            views = self._views(index, like.new_zeros(self._size))
            self._source.wait(self._begin(index, views))
            self._bind(index, views)
        self._start(0)

    def _start(self, position: int) -> None:
        """Fetch as many layers as there are slabs, from one on."""
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
        if index in self._resident:
            return
        if self._is_torn or self._turn[self._next % len(self._turn)] != index:
            self._is_torn = True
            self._source.drain()
            self._start(self._turn.index(index))
        self._is_torn = True
        views, started = self._fetching.pop(self._next)
        self._source.wait(started)
        self._bind(index, views)

    def _after(self, index: int) -> None:
        if index not in self._resident:
            self._fetch(self._next + len(self._slabs))
            self._next += 1
            self._is_torn = False


def _padded(stored: StoredTensor | PinnedTensor) -> int:
    """Return how many elements a tensor takes, the next one being aligned for vector instructions."""
    return -(-torch.Size(stored.shape).numel() // 64) * 64
