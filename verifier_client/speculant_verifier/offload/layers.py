"""Decoder layers whose weights are fetched while those before them are computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers.utils import logging

from speculant_verifier.offload.files import PinnedTensor, PinnedWeights, StoredTensor, WeightReader, new_space

_Weights = Sequence[tuple[nn.Module, str, StoredTensor | PinnedTensor]]


class LayerStream:
    """Gives as many layers a slab of memory of their own as it may, and fetches the others in turn.

    Those are fetched in the order of the forward pass, round and round, into two slabs. A slab is free as soon as its
    layer is computed, and the next layer that has none is fetched into it; that of the next pass at the end of this
    one. Nothing is allocated for a pass.
    """

    num_wanted = num_found = 0
    """Experts."""
    gives_back = True
    """Whether memory is given back if there are fewer slots."""

    def __init__(
        self,
        layers: Sequence[tuple[nn.Module, _Weights]],
        num_slots: int,
        like: Tensor,
        source: WeightReader | PinnedWeights,
    ) -> None:
        """Take layers and their weights; they get slabs of the number type and the device of a tensor."""
        self._source, self._layers = source, layers
        self._size = max(sum(_padded(stored) for _, _, stored in weights) for _, weights in layers)
        self._slabs = [new_space((self._size,), like)[0] for _ in range(2)]
        self._own: dict[int, Tensor] = {}  # slabs of layers that stay
        self._turn: list[int] = []  # layers that are fetched
        self._fetching: dict[int, tuple[list[Tensor], list[Any]]] = {}
        self._next = 0  # of them, the one that is computed next, all rounds counted
        self._is_torn = False  # a pass has ended within a layer, by an error or Ctrl-C
        for index, (layer, _) in enumerate(layers):
            layer.register_forward_pre_hook(lambda *_, index=index: self._before(index))
            layer.register_forward_hook(lambda *_, index=index: self._after(index))
        self.resize(num_slots, partial(logging.tqdm, desc="Reading weights"))

    def resize(self, num_slots: int, progress: Callable[[list[int]], Iterable[int]] = iter) -> None:
        """Let another number of layers stay, between passes.

        Args:
            num_slots: space for those that are fetched in turn is counted, too.
            progress: goes through indices of layers that are read for it, and shows that.
        """
        self._source.drain()
        self._fetching.clear()
        total, count = len(self._layers), len(self._layers) - (num_slots - len(self._slabs))
        turn = [each for each in range(total) if (each + 1) * count // total > each * count // total]
        for index in turn:
            self._bind(index, self._views(index, self._slabs[0]))
            self._own.pop(index, None)
        self._is_torn = True  # until those that stay are there; what can't be read for that is fetched in turn
        self._turn = [index for index in range(total) if index not in self._own]
        for index in progress([index for index in self._turn if index not in turn]):
            slab, _ = new_space((self._size,), self._slabs[0])
            views = self._views(index, slab)
            self._source.wait(self._begin(index, views))
            self._bind(index, views)
            self._own[index] = slab
            self._turn.remove(index)
        self._start(0)
        self._is_torn = False

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
        if index in self._own:
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
        if index not in self._own:
            self._fetch(self._next + len(self._slabs))
            self._next += 1
            self._is_torn = False


def _padded(stored: StoredTensor | PinnedTensor) -> int:
    """Return the numbers that a tensor takes, the next one being aligned for vector instructions."""
    return -(-torch.Size(stored.shape).numel() // 64) * 64
