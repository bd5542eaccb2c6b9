"""Offloading for mixtures of experts: each expert is read when the router chooses it, and then cached in memory.

All layers share one pool of experts, and a pass reads only the chosen experts that are missing from the pool. On a CPU,
the pool prefetches the next layer's experts while the present layer is computed. The pool guesses which experts the
next layer needs by applying that layer's router to the present layer's input. Hidden states change little from layer to
layer, so most guesses are right. If many guesses are wrong, fewer experts are prefetched. A prefetch is cancelled if
its guess was wrong and its read has not begun.

A pass that needs at least half of a layer's experts also prefetches the same number of experts of the next layer, on
any device. Successive layers probably need similar numbers of experts. The experts to evict are chosen at random:
passes visit the layers in order, so LRU would evict the expert that is needed next.
"""

from __future__ import annotations

import mmap
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from speculant_verifier.offload.host_memory import HostMemory
from speculant_verifier.offload.weight_files import PinnedWeights, StoredTensor, WeightReader, new_space, type_in_memory

_MOST = 0.5
"""Least share of a layer's experts at which a pass prefetches on any device, not only on a CPU. A pass that needs at
least this share starts to read the same number of experts of the next layer before that layer's router chooses."""

_MEMORY = 0.95
"""Factor by which the running average of the share of right guesses decays at each layer."""
_LEAST_SHARE, _TRIED = 0.75, 16
"""If the share of right guesses is below this value, the pool guesses only at every ``_TRIED``-th layer, to detect a
change."""

_Expert = tuple[int, int]
"""An expert, as layer index and expert index within the layer."""


class ExpertPool:
    """One pool of memory slots for the experts of all layers."""

    def __init__(
        self,
        modules: Sequence[tuple[nn.Module, Mapping[str, StoredTensor | Tensor]]],
        num_slots: int,
        like: Tensor,
        source: WeightReader | PinnedWeights | HostMemory,
        routers: Sequence[tuple[Tensor, Tensor | None] | None],
    ) -> None:
        """Set up the pool for the experts of all layers.

        Args:
            modules: the expert modules of the layers, in order, and their weights; each weight has one row per expert.
            num_slots: number of experts that fit into memory.
            like: tensor with the pool's device and, unless the weights are packed, its dtype.
            source: reads the weights.
            routers: weight and bias of each layer's router; None for a layer whose router is unknown.
        """
        self._source: Any = source
        self._modules = modules
        self._num_experts = int(modules[0][0].num_experts)  # type: ignore[arg-type]
        self.num_wanted = self.num_found = 0
        """Number of experts that passes have needed, and how many of them were in the pool or being read."""
        shapes = {name: stored.shape[1:] for name, stored in modules[0][1].items()}
        self.gives_back = like.device.type == "cpu"
        """Whether reducing the number of slots frees memory."""
        kinds = {name: like.to(type_in_memory(each, like.dtype)) for name, each in modules[0][0].named_parameters()}
        spaces = {name: new_space((num_slots, *shape), kinds[name]) for name, shape in shapes.items()}
        self._pool = {name: pool for name, (pool, _) in spaces.items()}
        self._memory = [memory for _, memory in spaces.values()]
        self._vectors = [  # biases etc. are too short for single reads: they stay, and are copied
            {name: self._kept(stored, like) for name, stored in weights.items() if len(shapes[name]) == 1}
            for _, weights in modules
        ]
        self._slots = torch.zeros(len(modules), self._num_experts, dtype=torch.long, device=like.device)
        self._held: dict[_Expert, int] = {}
        self._num_slots = num_slots
        self._free = list(range(num_slots))
        self._is_dirty = False  # a pass has ended while experts were being read
        self._reading: dict[_Expert, list[Any]] = {}
        self._routers = routers
        self._guessed: list[_Expert] = []
        self._right, self._num_guesses = 1.0, 0  # the recent share of right guesses
        self._leaving: list[tuple[int, list[Any]]] = []  # slots with pending writes, and the reads that write
        self._random = random.Random(0)
        shared = {name: nn.Parameter(pool, requires_grad=False) for name, pool in self._pool.items()}
        for index, (module, _) in enumerate(modules):
            module._parameters.update(shared)
            module.num_experts = num_slots  # type: ignore[assignment]
            module.register_forward_pre_hook(
                lambda _, args, kwargs, index=index: self._before(index, args, kwargs), with_kwargs=True
            )

    def resize(self, num_slots: int) -> None:
        """Between passes, change the number of slots and free the memory of unused slots."""
        was_dirty, self._is_dirty = self._is_dirty, True
        self._give_up(())
        for _, parts in self._leaving:
            self._source.wait(parts)
        self._leaving = []
        for expert, slot in list(self._held.items()):
            if slot >= num_slots:
                self._wait(expert)
                del self._held[expert]
        used = set(self._held.values())
        self._num_slots = num_slots
        self._free = [slot for slot in range(num_slots) if slot not in used]
        for memory, pool in zip(self._memory, self._pool.values(), strict=True):
            first = -(-num_slots * pool[0].nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
            if memory is not None and first < len(memory):
                memory.madvise(mmap.MADV_DONTNEED, first)
        self._is_dirty = was_dirty

    def _kept(self, stored: StoredTensor | Tensor, like: Tensor) -> Tensor:
        tensor = like.new_empty(stored.shape)
        self._source.wait(self._source.read([(stored, tensor)]))
        return tensor

    def _before(
        self, layer: int, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        hidden, chosen, *rest = args
        wanted = [(layer, index) for index in torch.unique(chosen).tolist()]
        if self._is_dirty:
            self._source.drain()
            self._forget()
        self._is_dirty = True
        self._give_up(wanted)
        self.num_wanted += len(wanted)
        self.num_found += sum(expert in self._held for expert in wanted)
        self._fetch(layer, wanted, hidden)
        if layer + 1 < len(self._modules) and len(wanted) < _MOST * self._num_experts:
            self._guess(layer + 1, hidden, wanted)
        self._is_dirty = False
        return (hidden, self._slots[layer][chosen], *rest), kwargs

    def _guess(self, layer: int, hidden: Tensor, kept: Sequence[_Expert]) -> None:
        """Prefetch the most probable experts of the next layer, at most as many as this layer needed."""
        router = self._routers[layer]
        if router is None or not self.gives_back:  # copies to a GPU can't be cancelled
            return
        self._num_guesses += 1
        most = round(self._right * len(kept))
        if self._right < _LEAST_SHARE:
            most = 0 if self._num_guesses % _TRIED else 1
        self._guessed = self._likely(layer, hidden)[: min(most, self._num_slots - len(kept))]
        self._take(self._guessed, [*kept, *self._guessed])

    def _likely(self, layer: int, hidden: Tensor) -> list[_Expert]:
        """Return a layer's experts, ordered by its router's scores for the given hidden states."""
        router = self._routers[layer]
        order: Iterable[int] = range(self._num_experts)
        if router is not None and layer:  # these states do not predict the first layer of the next pass
            scores = nn.functional.linear(hidden.reshape(-1, hidden.shape[-1]), *router).amax(0)
            order = scores.argsort(descending=True).tolist()
        return [(layer, index) for index in order]

    def _give_up(self, wanted: Sequence[_Expert]) -> None:
        """Cancel the prefetches of wrongly guessed experts whose reads have not begun."""
        if self._guessed:
            came_true = sum(expert in wanted for expert in self._guessed) / len(self._guessed)
            self._right = _MEMORY * self._right + (1.0 - _MEMORY) * came_true
        for expert in self._guessed:
            parts = self._reading.get(expert, ()) if expert not in wanted else ()
            running = [part for part in parts if not part.cancel()]
            if len(running) < len(parts):
                del self._reading[expert]
                self._leaving.append((self._held.pop(expert), running))
        self._guessed = []

    def _fetch(self, layer: int, wanted: Sequence[_Expert], hidden: Tensor) -> None:
        """Read the chosen experts and wait for them; if there are many, also start reading the next layer's experts."""
        self._take(wanted, wanted)
        if len(wanted) >= _MOST * self._num_experts:
            following = (layer + 1) % len(self._modules)
            if following or len(wanted) == self._num_experts:
                coming = self._likely(following, hidden)[: len(wanted)]
                self._take(coming, [*wanted, *coming])
        for expert in wanted:
            self._wait(expert)

    def _take(self, wanted: Iterable[_Expert], kept: Iterable[_Expert]) -> None:
        """Start reading the missing experts, as many as fit without evicting any expert in ``kept``."""
        done = [each for each in self._leaving if all(part.done() for part in each[1])]
        self._leaving = [each for each in self._leaving if each not in done]
        self._free += [slot for slot, _ in done]
        staying = set(kept)
        missing = [expert for expert in wanted if expert not in self._held]
        leaving: list[_Expert] = []
        if (lacking := len(missing) - len(self._free)) > 0:
            leaving = [expert for expert in self._held if expert not in staying]
            leaving = self._random.sample(leaving, min(lacking, len(leaving)))
        for expert in missing:
            if not self._free:
                if leaving:
                    gone = leaving.pop()
                    self._wait(gone)
                    self._free.append(self._held.pop(gone))
                elif self._leaving:
                    slot, parts = self._leaving.pop()
                    self._source.wait(parts)
                    self._free.append(slot)
                else:
                    return
            slot = self._held[expert] = self._free.pop()
            layer, index = expert
            self._slots[layer, index] = slot
            vectors, stored = self._vectors[layer], self._modules[layer][1]
            for name, tensor in vectors.items():
                self._pool[name][slot].copy_(tensor[index])
            self._reading[expert] = self._source.read(
                [(each[index], self._pool[name][slot]) for name, each in stored.items() if name not in vectors]
            )

    def _wait(self, expert: _Expert) -> None:
        """Wait until an expert is in the pool."""
        if started := self._reading.pop(expert, None):
            self._source.wait(started)

    def _forget(self) -> None:
        """Clear the pool: its content is unknown after a pass that ended with an error or Ctrl-C."""
        self._held.clear()
        self._reading.clear()
        self._guessed, self._leaving = [], []
        self._free = list(range(self._num_slots))
