"""Stores one layer's keys and values, with the interface of a cache layer in transformers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin

from speculant_graph import _core
from speculant_verifier.cache.pass_layout import Placement

Buffer = NDArray[np.int16]
"""A KV buffer viewed as 16-bit integers, ``[rows, kv_heads, slots, n]``, so that copies do not depend on its dtype."""


class SlotLayer(CacheLayerMixin):
    """KV buffers of one layer, ``[rows, kv_heads, slots, head_dim]``; before each pass, the cache chooses the slots.

    Buffers are zeroed, never uninitialised: a NaN in a masked slot would still poison the output (0 x NaN).
    """

    keys: Tensor
    values: Tensor
    is_sliding = False
    is_compileable = False
    is_croppable = False

    def __init__(self, num_rows: int, num_slots: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.num_rows, self.num_slots = num_rows, num_slots
        self.placement: Placement | None = None
        self._memories: tuple[Buffer | None, Buffer | None] = None, None

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate the buffers in the first pass, when shapes, dtype and device are known."""
        self.keys = _zeros_like(key_states, self.num_rows, self.num_slots)
        self.values = _zeros_like(value_states, self.num_rows, self.num_slots)
        self._memories = _memory_of(self.keys), _memory_of(self.values)
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Store the pass's keys and values, ``[n, kv_heads, T, head_dim]``; return all keys and values to attend to."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        placement = self.placement
        assert placement is not None, "a pass is planned before it runs"
        if placement.run is not None:  # a slice is cheaper than index tensors
            row, start = placement.run
            stop = start + key_states.shape[2]
            self.keys[row, :, start:stop] = key_states[0]
            self.values[row, :, start:stop] = value_states[0]
        else:
            rows = placement.rows[:, None]
            self.keys[rows, :, placement.slots] = key_states.transpose(1, 2)
            self.values[rows, :, placement.slots] = value_states.transpose(1, 2)
        rows_read = placement.rows if placement.block is None else placement.block
        return self.keys[rows_read, :, : placement.columns], self.values[rows_read, :, : placement.columns]

    @property
    def num_bytes(self) -> int:
        """Size of this layer's KV buffers, in bytes; 0 before they are allocated."""
        return self.keys.nbytes + self.values.nbytes if self.is_initialized else 0

    def resize(self, num_rows: int, num_slots: int) -> None:
        """Resize the buffers; rows and slots that exist in both sizes keep their contents."""
        for name in ("keys", "values"):  # one by one, so that only one exists twice at a time
            if not self.is_initialized:
                break
            old: Tensor = getattr(self, name)
            if (old.shape[0], old.shape[2]) == (num_rows, num_slots):
                continue
            rows, slots = min(num_rows, old.shape[0]), min(num_slots, old.shape[2])
            new = _zeros_like(old, num_rows, num_slots)
            new[:rows, :, :slots] = old[:rows, :, :slots]
            setattr(self, name, new)
            self._memories = _memory_of(self.keys), _memory_of(self.values)
        self.num_rows, self.num_slots = num_rows, num_slots

    def move(self, rows: Tensor, source: Tensor, target: Tensor) -> None:
        """Copy KV entries of ``rows`` from slots ``source`` to ``target``, in path order; none to a later slot."""
        keys, values = self._memories
        if keys is not None and values is not None:  # a loop: index tensors cost more than the copies
            for memory in (keys, values):
                _core.move_slots(memory, rows.numpy(), source.numpy(), target.numpy())
            return
        self.keys[rows, :, target] = self.keys[rows, :, source]
        self.values[rows, :, target] = self.values[rows, :, source]

    def copy_row(self, source: int, target: int, num_slots: int) -> None:
        """Copy the first ``num_slots`` slots of row ``source`` to row ``target``."""
        if self.is_initialized:
            self.keys[target, :, :num_slots] = self.keys[source, :, :num_slots]
            self.values[target, :, :num_slots] = self.values[source, :, :num_slots]

    def read(self, row: int, slots: Tensor | slice) -> tuple[Tensor, Tensor]:
        """Return copies of the keys and values in some slots of a row, ``[kv_heads, slots, head_dim]`` each."""
        return self.keys[row][:, slots].clone(), self.values[row][:, slots].clone()

    def write(self, row: int, slots: Tensor | slice, keys: Tensor, values: Tensor) -> None:
        """Write keys and values that :meth:`read` returned into slots of a row."""
        self.keys[row][:, slots] = keys
        self.values[row][:, slots] = values

    def wipe(self, row: int, start: int, stop: int) -> None:
        """Set slots of a row to zero."""
        if self.is_initialized and start < stop:
            self.keys[row, :, start:stop] = 0
            self.values[row, :, start:stop] = 0

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the number of slots that the pass may attend to, and the offset 0; transformers needs this method."""
        del query_length
        return self.get_seq_length(), 0

    def get_seq_length(self) -> int:
        """Return the number of slots that the pass may attend to; transformers needs this method."""
        return 0 if self.placement is None else self.placement.columns

    def get_max_length(self) -> int:
        """Return the number of slots per row; transformers needs this method."""
        return self.num_slots


def _zeros_like(states: Tensor, num_rows: int, num_slots: int) -> Tensor:
    """Return a zeroed buffer ``[rows, kv_heads, slots, head_dim]``; on a GPU, slots precede heads in memory.

    With this memory order, attention can split a row's slots into parts (:meth:`CacheLayout.num_parts`) without copying
    them.
    """
    heads, size = states.shape[1], states.shape[3]
    if states.device.type == "cpu":
        return states.new_zeros(num_rows, heads, num_slots, size)
    return states.new_zeros(num_rows, num_slots, heads, size).transpose(1, 2)


def _memory_of(buffer: Tensor) -> Buffer | None:
    """Return a buffer's memory as 16-bit integers; None if it is not on a CPU or has one-byte elements."""
    if buffer.device.type != "cpu" or buffer.element_size() % 2:
        return None
    memory: Buffer = buffer.view(torch.int16).numpy()
    return memory
