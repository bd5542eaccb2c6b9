"""Moving slots on a CPU: one loop over a buffer instead of index tensors, which cost more than the copies."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from speculant_graph import _core

Buffer = NDArray[np.int16]
"""A buffer's memory, ``[rows, kv_heads, slots, n]``."""


def memory_of(buffer: Tensor) -> Buffer | None:
    """Return the memory of a buffer of keys or values; None if it is not on a CPU, or of single bytes."""
    if buffer.device.type != "cpu" or buffer.element_size() % 2:
        return None
    memory: Buffer = buffer.view(torch.int16).numpy()
    return memory


def move_slots(memory: Buffer, rows: NDArray[np.int64], source: NDArray[np.int64], target: NDArray[np.int64]) -> None:
    """Copy slots ``source`` of ``rows`` to slots ``target``, in this order; arrays ``[k]``.

    In the order of a path nothing is overwritten before it was read: a node never moves behind itself.
    """
    _core.move_slots(memory, rows, source, target)
