"""From trees of tokens to positions and masks: what one pass over ragged rows looks like, worked out on the host.

A row's pass is a chain of pending tokens, committed by definition, and a draft whose root is the last of them. Node i
of the pass is written to the row's slot ``length + i``. It sees the committed tokens, its ancestors and itself; its
position goes by its depth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from speculant_graph.types import Draft

_STEP = 16  # of slots: kernels need masks whose rows are aligned
_WIDTHS = 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64
"""Nodes of passes that are recorded."""
_LEAST_COLUMN_STEP = 256
"""Slots that they read come in multiples of this, or of a quarter of the next power of two."""
_MOST_BUSY = 256
"""Processors of a GPU that one kernel of attention should keep busy: about twice as many as large ones have."""
_FEWEST_COLUMNS = 128
"""Slots of a part: to put parts together takes as long as to look at so many."""
_MOST_MASKED = 1 << 27
"""Numbers of a mask that is repeated for every head."""
_MOST_FOLDED = 64
"""Passes of more nodes have masks that are not repeated: one call of the kernel per group costs little then."""


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """The model's side of a cache."""

    step: ClassVar[int] = _STEP
    """Slots come in multiples of this."""
    is_sliding: tuple[bool, ...]
    """Per layer, whether it sees the window only."""
    window: int | None
    """Positions that sliding layers see, a token's own included; None if no layer slides."""
    groups: int
    """Heads of queries per head of keys."""
    kv_heads: int
    """Heads of keys."""
    folds_masks: bool
    """Whether masks are repeated for queries that share a head of keys."""
    dtype: torch.dtype
    """Of masks that are added."""
    device: torch.device
    """Where plans are needed."""
    rounds: bool = False
    """Whether passes are padded to few shapes, so that they can be recorded."""
    splits: bool = False
    """Whether attention over many slots is computed in several parts, as a GPU needs it to be busy."""

    def round_up(self, num_slots: int) -> int:
        """Return the number of slots that are taken for so many."""
        return -(-num_slots // _STEP) * _STEP

    def round_width(self, width: int) -> int:
        """Return the nodes that a pass of so many is padded to."""
        return next((rounded for rounded in _WIDTHS if rounded >= width), width) if self.rounds else width

    def round_rows(self, num_rows: int) -> int:
        """Return the rows that a pass of so many is padded to."""
        return 1 << (num_rows - 1).bit_length() if self.rounds and num_rows else num_rows

    def round_columns(self, end: int) -> int:
        """Return the slots that a pass reads if its last node is written before slot ``end``."""
        if not self.rounds:
            return self.round_up(end)
        step = max(_LEAST_COLUMN_STEP, (1 << (end - 1).bit_length()) // 4)
        return -(-end // step) * step

    def num_parts(self, num_rows: int, width: int, columns: int) -> int:
        """Return the parts of the slots that a pass attends to at once.

        A GPU's kernel takes one processor for up to 64 queries of a head, which looks at one slot after the other.
        """
        queries = width * self.groups
        if not self.splits or width > _MOST_FOLDED or num_rows * self.kv_heads * queries * columns > _MOST_MASKED:
            return 1
        num_busy = num_rows * self.kv_heads * -(-queries // 64)
        parts = min(_MOST_BUSY // num_busy, columns // _FEWEST_COLUMNS)
        return max(
            (1 << power for power in range(8) if 1 << power <= parts and not columns % (_STEP << power)), default=1
        )

    def ring_slots(self, widest_pass: int | None) -> int | None:
        """Return the slots of a ring that passes of so many nodes can be rolled back in; None for passes of any width.

        A pass overwrites what is ``ring`` slots behind its last node, which its first node must no longer see.
        """
        if widest_pass is None or self.window is None:
            return None
        return self.round_up(self.window + widest_pass - 1)


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


@dataclass(frozen=True, slots=True)
class ForwardPlan:
    """What the model is called with for one pass over n rows of T nodes."""

    position_ids: Tensor
    """``[n, T]`` int64, by depth in the tree."""
    full: Tensor | None
    """Mask of layers that see everything, in the form that the attention takes; None if there are none."""
    sliding: Tensor | None
    """Mask of layers with a window; None if there are none."""
    full_placement: Placement | None
    """Where layers that see everything write and read."""
    sliding_placement: Placement | None
    """The same of layers with a window."""


def hidden_score(dtype: torch.dtype) -> float:
    """Return what masks add to the logits of what a query must not see.

    Not minus infinity: of a query that may see nothing the result must be a number. Nor the lowest number: kernels
    multiply it, and what they return for such a query, which one part of the slots may have, would be infinite.
    """
    return max(torch.finfo(dtype).min, -1e30)


class MaskMaker:
    """Makes the masks of one kind of layers, pass by pass: a mask is valid until the next one is made."""

    def __init__(self, layout: CacheLayout, window: int | None = None) -> None:
        """Take the layout, and the positions that the layers see; None: everything."""
        self._layout, self._window = layout, window
        # Filling memory that the system has just handed out takes several times as long as filling it again.
        self._space = torch.empty(0, dtype=layout.dtype, device=layout.device)
        self._seen = torch.zeros((), dtype=layout.dtype, device=layout.device)
        self._hidden = torch.full((), hidden_score(layout.dtype), dtype=layout.dtype, device=layout.device)

    def make(self, shape: PassShape, columns: int, ring: int, num_written: int) -> Tensor:
        """Return the mask of a pass in the form of the layout's attention, on its device.

        Args:
            shape: the pass.
            columns: slots that are looked at.
            ring: slots of a layer with a window; see :func:`window_visibility`.
            num_written: nodes from the first one that were written before: their rows are left out.
        """
        layout, window = self._layout, self._window
        seen = full_visibility(shape, columns) if window is None else window_visibility(shape, columns, window, ring)
        on_device = torch.from_numpy(seen[:, num_written:]).to(layout.device, non_blocking=True)
        count, width, columns = on_device.shape
        added = torch.where(on_device[:, None], self._seen, self._hidden)
        if not layout.folds_masks or width > _MOST_FOLDED:
            return added
        num_parts, groups = layout.num_parts(count, width, columns), layout.groups if width > 1 else 1
        if num_parts * groups == 1:
            return added
        # Neighbouring slots are of different parts: so each part is a view of keys that lie slot by slot.
        parted = added.view(count, width, columns // num_parts, num_parts).permute(0, 3, 1, 2)
        heads = layout.kv_heads if num_parts > 1 else 1
        size = added.numel() * heads * groups
        if self._space.numel() < size:
            self._space = torch.empty(size + size // 2, dtype=layout.dtype, device=layout.device)
        folded = self._space[:size].view(count, num_parts, heads, groups, width, columns // num_parts)
        folded.copy_(parted[:, :, None, None].expand_as(folded))
        return folded.view(count, num_parts * heads, groups * width, columns // num_parts)


Bools = NDArray[np.bool_]
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PassShape:
    """The nodes of one pass over n rows, T of them each; rows with fewer are padded with nodes that see themselves."""

    lengths: Integers
    """Committed tokens, ``[n]``."""
    depths: Integers
    """Steps from a row's first pending token, ``[n, T]``; padding has the depth of the row's deepest node."""
    ancestors: Bools
    """``[n or 1, T, T]``: whether the first node sees the second, which is its ancestor or itself."""


def shape_of_pass(
    lengths: Sequence[int], pending: Sequence[int], drafts: Sequence[Draft] | None, width: int | None = None
) -> PassShape:
    """Work out depths and ancestors of all rows.

    Args:
        lengths: committed tokens of each row.
        pending: pending tokens of each row, at least 1.
        drafts: the tree below the last pending token of each row; None for no drafts.
        width: T, at least what the longest row needs; None: just that.
    """
    sizes = sizes_of(pending, drafts)
    width = max(sizes) if width is None else width
    if drafts is None or all(draft.is_chain for draft in drafts):
        depths = np.minimum(np.arange(width), np.array(sizes)[:, None] - 1)
        # Padding of a chain sees the chain, which does no harm, and all rows share one matrix.
        return PassShape(np.array(lengths), depths, np.tri(width, dtype=np.bool_)[None])
    depths = np.empty((len(sizes), width), dtype=np.int64)
    relations: list[int] = []
    for row, (chain, draft) in enumerate(zip(pending, drafts, strict=True)):
        # The nodes that a node sees are the bits of a number.
        seen = [(2 << node) - 1 for node in range(chain)]
        depth = list(range(chain))
        for node, parent in enumerate(draft.parents, start=chain):
            above = chain - 1 + parent
            seen.append(seen[above] | 1 << node)
            depth.append(depth[above] + 1)
        padding = range(sizes[row], width)
        depths[row] = depth + [max(depth)] * len(padding)
        relations += seen
        relations += [1 << node for node in padding]
    num_bytes = -(-width // 8)
    packed = np.frombuffer(b"".join(bits.to_bytes(num_bytes, "little") for bits in relations), dtype=np.uint8)
    ancestors = np.unpackbits(packed.reshape(len(sizes), width, num_bytes), axis=2, count=width, bitorder="little")
    return PassShape(np.array(lengths), depths, ancestors.view(np.bool_))


def sizes_of(pending: Sequence[int], drafts: Sequence[Draft] | None) -> list[int]:
    """Return the nodes of each row's pass, padding aside."""
    if drafts is None:
        return list(pending)
    return [chain + len(draft.token_ids) for chain, draft in zip(pending, drafts, strict=True)]


def full_visibility(shape: PassShape, columns: int) -> Bools:
    """Return which slots nodes see that see everything, ``[n, T, columns]``."""
    count, width = shape.depths.shape
    visible = np.zeros((count, width, columns), dtype=np.bool_)
    for row, length in enumerate(shape.lengths.tolist()):
        visible[row, :, :length] = True
        visible[row, :, length : length + width] = shape.ancestors[row % len(shape.ancestors)]
    return visible


def window_visibility(shape: PassShape, columns: int, window: int, ring: int) -> Bools:
    """Return which slots nodes see that see the last ``window`` positions, themselves included.

    Args:
        shape: the pass.
        columns: slots that are looked at.
        window: by position, not by slot: siblings share one.
        ring: slot = index % ring, where the index of a node counts committed tokens and nodes before it.

    Returns:
        ``[n, T, columns]``.
    """
    count, width = shape.depths.shape
    visible = np.zeros((count, width, columns), dtype=np.bool_)
    for row, length in enumerate(shape.lengths.tolist()):
        first = max(0, length - window + 1)  # what the first node sees; others see less of the past
        depths = shape.depths[row]
        block = np.empty((width, length - first + width), dtype=np.bool_)
        block[:, : length - first] = np.arange(first, length) > (length - window + depths)[:, None]
        np.logical_and(
            shape.ancestors[row % len(shape.ancestors)],
            depths > (depths - window)[:, None],
            out=block[:, length - first :],
        )
        start = first % ring
        until_wrap = min(block.shape[1], ring - start)
        visible[row, :, start : start + until_wrap] = block[:, :until_wrap]
        visible[row, :, : block.shape[1] - until_wrap] = block[:, until_wrap:]
    return visible
