"""Masks in the forms that implementations of attention take."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from speculant_verifier.cache.layout import CacheLayout

_MOST_FOLDED = 64
"""Passes of more nodes have masks that are not repeated: one call of the kernel per group costs little then."""


def mask_of(visible: NDArray[np.bool_], layout: CacheLayout) -> Any:
    """Bring ``[n, T, columns]`` into the form of the layout's attention, on its device."""
    on_device = torch.from_numpy(visible).to(layout.device, non_blocking=True)
    if layout.mask_form == "blocks":
        return _block_mask(on_device)
    count, width, columns = on_device.shape
    groups = layout.groups if layout.mask_form == "folded" and 1 < width <= _MOST_FOLDED else 1
    # The lowest finite number: sums with minus infinity may be NaN.
    added = torch.where(
        on_device[:, None].expand(-1, groups, -1, -1),
        torch.zeros((), dtype=layout.dtype, device=layout.device),
        torch.full((), torch.finfo(layout.dtype).min, dtype=layout.dtype, device=layout.device),
    )
    return added.view(count, 1, groups * width, columns)


def _block_mask(visible: Tensor) -> Any:
    """Tell flex_attention what is visible, and so which blocks it may skip."""
    from torch.nn.attention.flex_attention import create_block_mask

    def is_visible(row: Tensor, head: Tensor, node: Tensor, slot: Tensor) -> Tensor:
        del head
        return visible[row, node, slot]

    count, width, columns = visible.shape
    return create_block_mask(is_visible, count, None, width, columns, device=visible.device)
