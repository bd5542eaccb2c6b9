"""Memory of weights that the system gets back as soon as it is not needed, which allocators keep for later."""

from __future__ import annotations

import mmap

import torch
from torch import Tensor


def new_space(shape: tuple[int, ...], like: Tensor) -> tuple[Tensor, mmap.mmap | None]:
    """Return a tensor of zeros of another one's number type and device, and on a CPU the memory that it lies in.

    Pages of that memory come when they are written to. They go when the tensor does, or when they are said to be
    needless (``madvise``): then they are zeros again.
    """
    if like.device.type != "cpu":
        return like.new_zeros(shape), None
    size = torch.Size(shape).numel() * like.element_size()
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=like.dtype).view(shape), memory
