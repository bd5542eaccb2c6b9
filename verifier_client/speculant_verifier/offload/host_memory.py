"""Host memory as the middle tier of offloading, between the disk and the compute device.

The most frequently used weights are in host memory and are copied to the device on demand. All other weights are read
from the disk directly to the device. A weight enters host memory only if it is used more often than the least used
weight there. Weights that every pass uses in turn, such as the layers of a dense model, therefore do not evict each
other, as they would with LRU eviction.
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
"""All use counts are halved after this number of uses, so that old uses count less."""


class Copier(Protocol):
    """Allocates host memory and copies from it to a device; see :class:`PinnedWeights`."""

    num_bytes: int

    @property
    def stall_s(self) -> float:
        """Total seconds for which forward passes waited for copies."""

    def space(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Allocate host memory from which weights are copied."""

    def read(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> list[Any]:
        """Start copying each tensor to a device tensor of the same shape."""

    def wait(self, started: Sequence[Any]) -> None:
        """Make later computation on the device wait for the started copies."""

    def drain(self) -> None:
        """Wait until all copies are done."""

    def close(self) -> None:
        """Stop copying, and free the host memory."""


@dataclass(slots=True)
class _Unit:
    """Weights in host memory that are always used together."""

    buffers: list[Tensor]
    is_there: bool = False


@dataclass(slots=True)
class _Started:
    """A transfer in progress: a read from the disk, a copy from memory, or a read followed by a copy."""

    key: StoredTensor
    reading: list[Any]
    copying: list[Any]
    into: list[Tensor]
    """Device tensors that receive a copy after the read; empty if the read goes directly to the device, or if the copy
    has started."""

    def cancel(self) -> bool:
        """Return False: transfers are never cancelled, because weights that were read stay in host memory."""
        return False


class HostMemory:
    """Transfers weights to a device, either from host memory (within a budget) or from the disk."""

    def __init__(self, num_bytes: int, reader: WeightReader, copier: Copier) -> None:
        """Start with no weights in host memory.

        Args:
            num_bytes: memory limit in bytes.
            reader: reads weights from the disk.
            copier: allocates host memory, and copies from it to the device.
        """
        self._left, self._reader, self._copier = num_bytes, reader, copier
        self._units: dict[StoredTensor, _Unit] = {}
        self._uses: Counter[StoredTensor] = Counter()
        self._num_uses = 0

    @property
    def num_bytes(self) -> int:
        """Bytes read from the disk so far."""
        return self._reader.num_bytes

    @property
    def num_copied(self) -> int:
        """Bytes copied from host memory to the device so far."""
        return self._copier.num_bytes

    @property
    def stall_s(self) -> float:
        """Total seconds for which forward passes waited for reads and copies."""
        return self._reader.stall_s + self._copier.stall_s

    def read(self, pairs: _Pairs) -> list[_Started]:
        """Start transferring a unit: weights that are always used together.

        Args:
            pairs: stored tensors, each with a device tensor of the same shape.

        Returns:
            The started transfers, to pass to :meth:`wait`.
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
        return [_Started(key, self._reader.read(pairs), [], [])]  # no memory, or in transfer to another tensor

    def wait(self, started: Sequence[_Started]) -> None:
        """Wait for the reads of transfers, and make later computation wait for their copies.

        Raises:
            GenerationError: a weight can't be read.
        """
        for each in started:
            self._reader.wait(each.reading)
            if each.into:
                unit = self._units[each.key]
                unit.is_there = True
                each.copying, each.into = self._copier.read(list(zip(unit.buffers, each.into, strict=True))), []
            self._copier.wait(each.copying)

    def drain(self) -> None:
        """Cancel reads that have not begun, and wait until all other reads and copies are done."""
        self._reader.drain()
        self._copier.drain()
        for key in [key for key, unit in self._units.items() if not unit.is_there]:
            self._left += _size(self._units.pop(key).buffers)

    def close(self) -> None:
        """Stop reading and copying, and free the host memory."""
        self._reader.close()
        self._copier.close()
        self._units.clear()

    def _count(self, key: StoredTensor) -> None:
        self._uses[key] += 1
        self._num_uses += 1
        if self._num_uses % _HALVED_EVERY == 0:
            self._uses = Counter({each: count // 2 for each, count in self._uses.items() if count > 1})

    def _space_for(self, pairs: _Pairs) -> _Unit | None:
        """Return host memory for a unit: free memory, or that of a less used unit; None if neither is available."""
        needed = _size([tensor for _, tensor in pairs])
        if needed <= self._left:
            try:
                with torch.inference_mode(False):  # the threads that write to it are not in inference mode
                    unit = _Unit([self._copier.space(tensor.shape, tensor.dtype) for _, tensor in pairs])
            except ConfigError as error:  # continue with the memory allocated so far
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
        self._copier.drain()  # copies from it may still run
        return _Unit(self._units.pop(least).buffers)


def _size(tensors: Sequence[Tensor]) -> int:
    return sum(each.nbytes for each in tensors)
