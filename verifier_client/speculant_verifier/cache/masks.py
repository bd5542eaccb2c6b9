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


class MaskMaker:
    """Makes the masks of one kind of layers, pass by pass: a mask is valid until the next one is made."""

    def __init__(self, layout: CacheLayout) -> None:
        self._layout = layout
        # Filling memory that the system has just handed out takes several times as long as filling it again.
        self._space = torch.empty(0, dtype=layout.dtype, device=layout.device)
        self._seen = torch.zeros((), dtype=layout.dtype, device=layout.device)
        # The lowest finite number: sums with minus infinity may be NaN.
        self._hidden = torch.full((), torch.finfo(layout.dtype).min, dtype=layout.dtype, device=layout.device)

    def make(self, visible: NDArray[np.bool_]) -> Any:
        """Bring ``[n, T, columns]`` into the form of the layout's attention, on its device."""
        layout = self._layout
        on_device = torch.from_numpy(visible).to(layout.device, non_blocking=True)
        if layout.mask_form == "blocks":
            return _block_mask(on_device)
        count, width, columns = on_device.shape
        added = torch.where(on_device[:, None], self._seen, self._hidden)
        if layout.mask_form == "added" or layout.groups == 1 or width == 1 or width > _MOST_FOLDED:
            return added
        size = added.numel() * layout.groups
        if self._space.numel() < size:
            self._space = torch.empty(size + size // 2, dtype=layout.dtype, device=layout.device)
        folded = self._space[:size].view(count, layout.groups, width, columns)
        return folded.copy_(added.expand_as(folded)).view(count, 1, layout.groups * width, columns)


def _block_mask(visible: Tensor) -> Any:
    """Tell flex_attention what is visible, and so which blocks it may skip."""
    from torch.nn.attention.flex_attention import create_block_mask

    def is_visible(row: Tensor, head: Tensor, node: Tensor, slot: Tensor) -> Tensor:
        del head
        return visible[row, node, slot]

    count, width, columns = visible.shape
    return create_block_mask(is_visible, count, None, width, columns, device=visible.device)
