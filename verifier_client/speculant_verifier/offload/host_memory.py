"""The middle one of three tiers: this machine's memory, between the disk and the device that computes.

What is used most lies here, and is copied to the device when it is wanted; all else is read from the disk to the device
at once. What is used more often than the least used of what lies here takes its place. So what passes want in turn, as
they want the layers of a dense model, does not push each other out, as it would if the latest always stayed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from loguru import logger
from torch import Tensor

from speculant_graph.errors import ConfigError
from speculant_verifier.offload.weight_files import StoredTensor, WeightReader

_Pairs = Sequence[tuple[StoredTensor, Tensor]]
_HALVED_EVERY = 4096
"""Uses after which all counts are halved, so that what was used long ago gives way."""


class Copier(Protocol):
    """Copies from memory that it gives to a device, such as :class:`PinnedWeights`."""

    num_bytes: int

    @property
    def stall_s(self) -> float:
        """Seconds that passes have waited for copies."""

    def space(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return memory to copy from."""

    def read(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> list[Any]:
        """Begin to copy; every tensor to one of the same shape."""

    def wait(self, started: Sequence[Any]) -> None:
        """Let what is computed from now on see the copies."""

    def drain(self) -> None:
        """Return when nothing is copied any more."""

    def close(self) -> None:
        """End what is being copied, and give the memory back."""


@dataclass(slots=True)
class _Unit:
    """Weights that are used together, in memory."""

    buffers: list[Tensor]
    is_there: bool = False


@dataclass(slots=True)
class _Started:
    """What was begun: reading from the disk, and then copying from memory, or one of them."""

    key: StoredTensor
    reading: list[Any]
    copying: list[Any]
    into: list[Tensor]
    """What is copied to when it was read; nothing if it is read to there, or being copied."""

    def cancel(self) -> bool:
        """Nothing is given up: what was read stays."""
        return False


class HostMemory:
    """Gives weights to a device from this machine's memory, as far as a budget goes, and else from the disk."""

    def __init__(self, num_bytes: int, reader: WeightReader, copier: Copier) -> None:
        """Begin with empty memory.

        Args:
            num_bytes: that it may take.
            reader: reads from the disk.
            copier: gives memory, and copies from it to the device.
        """
        self._left, self._reader, self._copier = num_bytes, reader, copier
        self._units: dict[StoredTensor, _Unit] = {}
        self._uses: Counter[StoredTensor] = Counter()
        self._num_uses = 0

    @property
    def num_bytes(self) -> int:
        """Read from the disk so far."""
        return self._reader.num_bytes

    @property
    def num_copied(self) -> int:
        """Bytes that were copied from this memory so far."""
        return self._copier.num_bytes

    @property
    def stall_s(self) -> float:
        """Seconds that passes have waited for either."""
        return self._reader.stall_s + self._copier.stall_s

    def read(self, pairs: _Pairs) -> list[_Started]:
        """Begin to fetch weights that are used together, always the same ones.

        Args:
            pairs: stored tensors, each with one of the device of the same shape.

        Returns:
            What :meth:`wait` takes.
        """
        key, into = pairs[0][0], [tensor for _, tensor in pairs]
        self._count(key)
        unit = self._units.get(key)
        if unit is not None and unit.is_there:
            return [_Started(key, [], self._copier.read(list(zip(unit.buffers, into, strict=True))), [])]
        if unit is None and (unit := self._space_for(pairs)) is not None:
            self._units[key] = unit
            started = self._reader.read([(stored, to) for (stored, _), to in zip(pairs, unit.buffers, strict=True)])
            return [_Started(key, started, [], into)]
        return [_Started(key, self._reader.read(pairs), [], [])]  # or it is on its way, to another place

    def wait(self, started: Sequence[_Started]) -> None:
        """Return when all that was begun is there, or will be before anything else is computed.

        Raises:
            GenerationError: it can't be read.
        """
        for each in started:
            self._reader.wait(each.reading)
            if each.into:
                unit = self._units[each.key]
                unit.is_there = True
                each.copying, each.into = self._copier.read(list(zip(unit.buffers, each.into, strict=True))), []
            self._copier.wait(each.copying)

    def drain(self) -> None:
        """Return when nothing is written any more; what had not begun is not read."""
        self._reader.drain()
        self._copier.drain()
        for key in [key for key, unit in self._units.items() if not unit.is_there]:
            self._left += _size(self._units.pop(key).buffers)

    def close(self) -> None:
        """End what is being read or copied, and give the memory back."""
        self._reader.close()
        self._copier.close()
        self._units.clear()

    def _count(self, key: StoredTensor) -> None:
        self._uses[key] += 1
        self._num_uses += 1
        if self._num_uses % _HALVED_EVERY == 0:
            self._uses = Counter({each: count // 2 for each, count in self._uses.items() if count > 1})

    def _space_for(self, pairs: _Pairs) -> _Unit | None:
        """Return memory for a unit: what is left, or that of one which is used less."""
        needed = _size([tensor for _, tensor in pairs])
        if needed <= self._left:
            try:
                with torch.inference_mode(False):  # the threads that write to it are not in it
                    unit = _Unit([self._copier.space(tensor.shape, tensor.dtype) for _, tensor in pairs])
            except ConfigError as error:  # what there is has to do
                logger.warning("no more memory for streamed weights: {}", error)
                self._left = 0
                return None
            self._left -= needed
            return unit
        settled = [key for key, unit in self._units.items() if unit.is_there]
        least = min(settled, key=self._uses.__getitem__, default=None)
        if least is None or self._uses[least] + 1 >= self._uses[pairs[0][0]]:
            return None
        buffers = self._units[least].buffers
        if [(each.shape, each.dtype) for each in buffers] != [(each.shape, each.dtype) for _, each in pairs]:
            return None
        self._copier.drain()  # it may still be copied from
        return _Unit(self._units.pop(least).buffers)


def _size(tensors: Sequence[Tensor]) -> int:
    return sum(each.nbytes for each in tensors)
