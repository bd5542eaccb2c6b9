"""Lays out one forward pass over a ragged batch: computes positions and masks of token trees on the host CPU.

In a pass, each row consists of a chain of pending tokens and a draft rooted at the last pending token. Pending tokens
are always committed. A row with ``length`` committed tokens stores node i of the pass in slot ``length + i``. Each node
attends to the committed tokens, its ancestors and itself, and its depth in the tree determines its position.
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

_STEP = 16  # slot granularity, because kernels need masks with aligned rows
_WIDTHS = 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64
"""Widths, in nodes per row, to which passes are padded if they are recorded as CUDA graphs."""
_LEAST_COLUMN_STEP = 256
"""A recorded pass rounds up the number of slots that it reads to a multiple of a step; this is the smallest step. For
long rows, the step is a quarter of the number of slots, rounded up to a power of two."""
_MOST_BUSY = 256
"""Maximum number of thread blocks of one attention kernel: about twice as many as a large GPU has multiprocessors."""
_FEWEST_COLUMNS = 128
"""Minimum number of slots per part of split-KV attention; merging two parts takes as long as reading these slots."""
_MOST_MASKED = 1 << 27
"""Maximum size, in elements, of a mask that is repeated for every head."""
_MOST_FOLDED = 64
"""Maximum width, in nodes, of passes that repeat the mask for the query heads of a group. Wider passes instead call the
kernel once per group, which costs little."""


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """Properties of a model and its attention that determine the layout of its KV cache."""

    step: ClassVar[int] = _STEP
    """Numbers of slots are always rounded up to a multiple of this number."""
    is_sliding: tuple[bool, ...]
    """For each layer, whether it attends only to a sliding window."""
    window: int | None
    """Number of positions that sliding-window layers attend to, including the token's own; None without such layers."""
    groups: int
    """Number of query heads per KV head."""
    kv_heads: int
    """Number of KV heads."""
    folds_masks: bool
    """Whether masks are repeated for query heads that share a KV head."""
    dtype: torch.dtype
    """Dtype of the additive attention masks."""
    device: torch.device
    """Device of the tensors in a :class:`ForwardPlan`."""
    rounds: bool = False
    """Whether passes are padded to a few shapes, so that they can be recorded as CUDA graphs."""
    splits: bool = False
    """Whether attention over many slots is split into parts (split-KV), to keep a GPU busy."""

    def round_up(self, num_slots: int) -> int:
        """Return a number of slots, rounded up to a multiple of ``step``."""
        return -(-num_slots // _STEP) * _STEP

    def round_width(self, width: int) -> int:
        """Return the width, in nodes, to which a pass of the given width is padded."""
        return next((rounded for rounded in _WIDTHS if rounded >= width), width) if self.rounds else width

    def round_rows(self, num_rows: int) -> int:
        """Return the number of rows to which a pass over ``num_rows`` rows is padded."""
        return 1 << (num_rows - 1).bit_length() if self.rounds and num_rows else num_rows

    def round_columns(self, end: int) -> int:
        """Return the number of slots that a pass reads if all its nodes are in slots before ``end``."""
        if not self.rounds:
            return self.round_up(end)
        step = max(_LEAST_COLUMN_STEP, (1 << (end - 1).bit_length()) // 4)
        return -(-end // step) * step

    def num_parts(self, num_rows: int, width: int, columns: int) -> int:
        """Return the number of parts into which a pass splits the slots for parallel attention.

        The GPU kernel processes up to 64 queries of a head in one thread block, which reads the slots sequentially.
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
        """Return the size of a ring buffer, in slots, that can roll back passes of this width; None without a ring.

        The last node of a pass overwrites the slot ``ring`` positions before it, which must be outside the window of
        the pass's first node.
        """
        if widest_pass is None or self.window is None:
            return None
        return self.round_up(self.window + widest_pass - 1)


@dataclass(frozen=True, slots=True)
class Placement:
    """The cache slots that a pass writes and reads in all full-attention layers or in all sliding-window layers."""

    rows: Tensor
    """Indices of the cache rows that take part in the pass, ``[n]``."""
    slots: Tensor
    """Slots to which the pass writes its nodes, ``[n, T]``."""
    columns: int
    """Number of slots that the pass reads in every row, starting at slot 0."""
    block: slice | None
    """Range of the rows if they are contiguous and can thus be read in place; None if they must be gathered."""
    run: tuple[int, int] | None
    """(row, first slot) if the pass writes contiguous slots of one row; else None."""


@dataclass(frozen=True, slots=True)
class ForwardPlan:
    """The model's inputs for one pass over n rows of T nodes."""

    position_ids: Tensor
    """Position of every node in its sequence, which follows from its depth in the tree, ``[n, T]`` int64."""
    full: Tensor | None
    """Attention mask of full-attention layers, in the format of the layout's attention; None without such layers."""
    sliding: Tensor | None
    """Attention mask of sliding-window layers; None without such layers."""
    full_placement: Placement | None
    """Slots that the pass writes and reads in full-attention layers; None if there are no such layers."""
    sliding_placement: Placement | None
    """Slots that the pass writes and reads in sliding-window layers; None if there are no such layers."""


def hidden_score(dtype: torch.dtype) -> float:
    """Return the value that an additive mask adds to the attention scores of masked slots.

    Minus infinity would not work: if slots are split into parts, a query may see no slot of a part. The query's result
    for this part must still be finite. The lowest finite number of float32 or bfloat16 would overflow, because kernels
    scale the value.
    """
    return max(torch.finfo(dtype).min, -1e30)


class MaskMaker:
    """Builds attention masks of full or sliding layers. A mask is valid until the next mask is built."""

    def __init__(self, layout: CacheLayout, window: int | None = None) -> None:
        """Store the layout and the window of the layers; the window is None for full attention."""
        self._layout, self._window = layout, window
        # Writing to newly allocated memory takes several times as long as reusing a buffer.
        self._space = torch.empty(0, dtype=layout.dtype, device=layout.device)
        self._seen = torch.zeros((), dtype=layout.dtype, device=layout.device)
        self._hidden = torch.full((), hidden_score(layout.dtype), dtype=layout.dtype, device=layout.device)

    def make(self, shape: PassShape, columns: int, ring: int, num_written: int) -> Tensor:
        """Return the attention mask of a pass on the layout's device, in the format of the layout's attention.

        Args:
            shape: the pass.
            columns: number of slots that the pass reads.
            ring: ring size of sliding layers; see :func:`window_visibility`.
            num_written: number of nodes at the start of each row that earlier passes wrote; the mask omits their rows.
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
        # Adjacent slots belong to different parts, so each part is a strided view of the keys.
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
    """Tree structure of one pass over n rows of T nodes each. Every padding node attends at least to itself."""

    lengths: Integers
    """Number of committed tokens per row, ``[n]``."""
    depths: Integers
    """Depth of every node below its row's first pending token, ``[n, T]``; padding has the row's greatest depth."""
    ancestors: Bools
    """The entry ``[row, i, j]`` says whether node j is node i itself or an ancestor of node i. Shape ``[n or 1, T,
    T]``."""


def shape_of_pass(
    lengths: Sequence[int], pending: Sequence[int], drafts: Sequence[Draft] | None, width: int | None = None
) -> PassShape:
    """Compute the depth and the ancestors of every node in all rows.

    Args:
        lengths: number of committed tokens of each row.
        pending: number of pending tokens of each row, at least 1.
        drafts: the tree below the last pending token of each row; None for no drafts.
        width: T, the padded width, which is at least the number of nodes of the longest row; None for exactly this
            number.
    """
    sizes = sizes_of(pending, drafts)
    width = max(sizes) if width is None else width
    if drafts is None or all(draft.is_chain for draft in drafts):
        depths = np.minimum(np.arange(width), np.array(sizes)[:, None] - 1)
        # All chains share one matrix: padding then attends to the chain, which is harmless.
        return PassShape(np.array(lengths), depths, np.tri(width, dtype=np.bool_)[None])
    depths = np.empty((len(sizes), width), dtype=np.int64)
    relations: list[int] = []
    for row, (chain, draft) in enumerate(zip(pending, drafts, strict=True)):
        # The visible nodes of a node are stored as the bits of an integer.
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
    """Return each row's number of nodes, without padding."""
    if drafts is None:
        return list(pending)
    return [chain + len(draft.token_ids) for chain, draft in zip(pending, drafts, strict=True)]


def full_visibility(shape: PassShape, columns: int) -> Bools:
    """Return which slots every node sees in full-attention layers, as booleans ``[n, T, columns]``."""
    count, width = shape.depths.shape
    visible = np.zeros((count, width, columns), dtype=np.bool_)
    for row, length in enumerate(shape.lengths.tolist()):
        visible[row, :, :length] = True
        visible[row, :, length : length + width] = shape.ancestors[row % len(shape.ancestors)]
    return visible


def window_visibility(shape: PassShape, columns: int, window: int, ring: int) -> Bools:
    """Return which slots every node sees if it attends to the last ``window`` positions, including its own.

    Args:
        shape: the pass.
        columns: slots that the pass reads.
        window: size of the window in positions, not in slots, because siblings share a position.
        ring: size of the ring buffer, in slots. A node is stored in slot index % ring, where index is the number of
            committed tokens and earlier nodes in its row.

    Returns:
        ``[n, T, columns]``.
    """
    count, width = shape.depths.shape
    visible = np.zeros((count, width, columns), dtype=np.bool_)
    for row, length in enumerate(shape.lengths.tolist()):
        first = max(0, length - window + 1)  # the first node's window; later windows start later
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
