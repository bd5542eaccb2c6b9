"""Decoder layers whose weights are read while those before them are computed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future

import torch
from torch import Tensor, nn

from speculant_verifier.offload.files import StoredTensor, WeightReader

_Weights = list[tuple[nn.Module, str, StoredTensor]]


class LayerStream:
    """Reads layers in the order of the forward pass, round and round, into a few slabs of memory.

    A slab is free as soon as its layer is computed, and the next layer that has none is read into it; that of the next
    pass at the end of this one. Nothing is allocated for a pass.
    """

    def __init__(
        self, layers: Sequence[tuple[nn.Module, _Weights]], num_slabs: int, dtype: torch.dtype, reader: WeightReader
    ) -> None:
        """Take layers and their weights, and begin to read the first ones."""
        self._reader = reader
        self._layers = layers
        self.stall_s = 0.0
        """Seconds that passes have waited for weights."""
        size = max(sum(_padded(stored) for _, _, stored in weights) for _, weights in layers)
        slabs = torch.empty(num_slabs, size, dtype=dtype)
        self._views = [[_views(slab, weights) for slab in slabs] for _, weights in layers]
        self._reading: dict[int, list[Future[None]]] = {}
        self._next = 0  # layer that is computed next, all rounds counted
        self._is_torn = False  # a pass has ended within a layer, by an error or Ctrl-C
        for number, (layer, weights) in enumerate(layers):
            for (module, name, _), view in zip(weights, self._views[number][0], strict=True):
                module._parameters[name] = nn.Parameter(view, requires_grad=False)
            layer.register_forward_pre_hook(lambda *_, number=number: self._before(number))
            layer.register_forward_hook(lambda *_: self._after())
        self._begin(0)

    def _begin(self, position: int) -> None:
        """Read as many layers as there are slabs, from one on."""
        self._next = position
        self._reading.clear()
        for following in range(position, position + len(self._views[0])):
            self._read(following)

    def _read(self, position: int) -> None:
        number = position % len(self._layers)
        views = self._views[number][position % len(self._views[0])]
        weights = self._layers[number][1]
        self._reading[position] = self._reader.read(
            [(each[2], view) for each, view in zip(weights, views, strict=True)]
        )

    def _before(self, number: int) -> None:
        if self._is_torn or self._next % len(self._layers) != number:
            self._is_torn = True
            self._reader.settle()
            self._begin(number)
        self._is_torn = True
        position = self._next
        started_s = time.perf_counter()
        for part in self._reading.pop(position):
            part.result()
        self.stall_s += time.perf_counter() - started_s
        views = self._views[number][position % len(self._views[0])]
        for (module, name, _), view in zip(self._layers[number][1], views, strict=True):
            module._parameters[name].data = view  # type: ignore[union-attr]

    def _after(self) -> None:
        self._read(self._next + len(self._views[0]))
        self._next += 1
        self._is_torn = False


def _padded(stored: StoredTensor) -> int:
    """Return the numbers that a tensor takes, the next one being aligned for vector instructions."""
    return -(-torch.Size(stored.shape).numel() // 64) * 64


def _views(slab: Tensor, weights: _Weights) -> list[Tensor]:
    views, first = [], 0
    for _, _, stored in weights:
        views.append(slab[first : first + torch.Size(stored.shape).numel()].view(stored.shape))
        first += _padded(stored)
    return views
