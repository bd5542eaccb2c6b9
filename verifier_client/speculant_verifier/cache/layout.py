"""What a cache needs of its model, the plan of one pass, and its masks in the form that attention takes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_STEP = 16  # of slots: kernels need masks whose rows are aligned
_MOST_FOLDED = 64
"""Passes of more nodes have masks that are not repeated: one call of the kernel per group costs little then."""


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """The model's side of a cache."""

    is_sliding: tuple[bool, ...]
    """Per layer, whether it sees the window only."""
    window: int | None
    """Positions that sliding layers see, a token's own included; None if no layer slides."""
    groups: int
    """Heads of queries per head of keys."""
    folds_masks: bool
    """Whether masks are repeated for queries that share a head of keys."""
    dtype: torch.dtype
    """Of masks that are added."""
    device: torch.device
    """Where plans are needed."""
    ring: bool = True
    """Sliding layers keep no more than the window and one pass."""

    @property
    def step(self) -> int:
        """Slots come in multiples of this."""
        return _STEP

    def round_up(self, num_slots: int) -> int:
        """Return the number of slots that are taken for so many."""
        return -(-num_slots // _STEP) * _STEP

    def ring_slots(self, widest_pass: int) -> int | None:
        """Return the slots of a ring that passes of so many nodes can be rolled back in; None without rings.

        A pass overwrites what is ``ring`` slots behind its last node, which its first node must no longer see.
        """
        if not self.ring or self.window is None:
            return None
        return self.round_up(self.window + widest_pass - 1)


@dataclass(frozen=True, slots=True)
class ForwardPlan:
    """What the model is called with for one pass over n rows of T nodes."""

    position_ids: Tensor
    """``[n, T]`` int64, by depth in the tree."""
    full: Tensor | None
    """Mask of layers that see everything, in the form that the attention takes; None if there are none."""
    sliding: Tensor | None
    """Mask of layers with a window; None if there are none."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a pass writes and reads in the layers of one kind."""

    rows: Tensor
    """``[n]``."""
    slots: Tensor
    """``[n, T]``, where the nodes are written."""
    columns: int
    """Slots that are read, from the first."""
    block: slice | None
    """The rows as a block of neighbours, which is read in place; None if they must be gathered."""
    run: tuple[int, int] | None
    """(row, first slot) if the pass writes one unbroken run of slots of one row."""


class MaskMaker:
    """Makes the masks of one kind of layers, pass by pass: a mask is valid until the next one is made."""

    def __init__(self, layout: CacheLayout) -> None:
        self._layout = layout
        # Filling memory that the system has just handed out takes several times as long as filling it again.
        self._space = torch.empty(0, dtype=layout.dtype, device=layout.device)
        self._seen = torch.zeros((), dtype=layout.dtype, device=layout.device)
        # The lowest finite number: sums with minus infinity may be NaN.
        self._hidden = torch.full((), torch.finfo(layout.dtype).min, dtype=layout.dtype, device=layout.device)

    def make(self, visible: NDArray[np.bool_]) -> Tensor:
        """Bring ``[n, T, columns]`` into the form of the layout's attention, on its device."""
        layout = self._layout
        on_device = torch.from_numpy(visible).to(layout.device, non_blocking=True)
        count, width, columns = on_device.shape
        added = torch.where(on_device[:, None], self._seen, self._hidden)
        if not layout.folds_masks or layout.groups == 1 or width == 1 or width > _MOST_FOLDED:
            return added
        size = added.numel() * layout.groups
        if self._space.numel() < size:
            self._space = torch.empty(size + size // 2, dtype=layout.dtype, device=layout.device)
        folded = self._space[:size].view(count, layout.groups, width, columns)
        return folded.copy_(added.expand_as(folded)).view(count, 1, layout.groups * width, columns)
