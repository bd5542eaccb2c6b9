"""What a cache needs of its model, and the plan of one pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from speculant_verifier.attention import MaskForm

_STEP = 16  # of slots: kernels need masks whose rows are aligned
_STEP_OF_BLOCKS = 128  # flex_attention's blocks; every new shape is compiled, so there should be few


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """The model's side of a cache."""

    is_sliding: tuple[bool, ...]
    """Per layer, whether it sees the window only."""
    window: int | None
    """Positions that sliding layers see, a token's own included; None if no layer slides."""
    groups: int
    """Heads of queries per head of keys."""
    mask_form: MaskForm
    """How the model's attention takes masks."""
    dtype: torch.dtype
    """Of masks that are added."""
    device: torch.device
    """Where plans are needed."""
    ring: bool = True
    """Sliding layers keep no more than the window and one pass."""

    @property
    def step(self) -> int:
        """Slots come in multiples of this."""
        return _STEP_OF_BLOCKS if self.mask_form == "blocks" else _STEP

    def round_up(self, num_slots: int) -> int:
        """Return the number of slots that are taken for so many."""
        return -(-num_slots // self.step) * self.step

    def width_of(self, num_nodes: int) -> int:
        """Return the T of a pass in which so many nodes are needed."""
        return 1 << (num_nodes - 1).bit_length() if self.mask_form == "blocks" else num_nodes

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
    full: Any
    """Mask of layers that see everything, in the form that the attention takes; None if there are none."""
    sliding: Any
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
