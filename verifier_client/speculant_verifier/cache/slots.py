"""KV cache of token slots: ragged rows without padding, drafts verified in place, exact rollback.

Every row starts at slot 0, and a committed token's slot equals its position. A forward pass writes the new nodes of row
``b`` to the slots after its committed tokens. Rows with fewer nodes than the longest row are padded with junk entries,
which are masked and later overwritten. To roll back rejected nodes, the cache simply does *not* advance the row's
length. This rollback also works for sliding-window layers, because their mask applies the window by **position**.

Sliding-window layers may use ring buffers (slot = index % ring) with space for the window and the widest pass. A pass
therefore overwrites only tokens outside every window, and masks hide the slots of rejected drafts. As long as a row
fits into its ring buffer, this buffer works like the buffer of any other layer. A ring buffer never has more slots than
the buffers of other layers, so rings take no extra memory for short batches.

Invariant: between steps, the cache contains all tokens of a row except its *pending* tokens. The next pass begins with
these pending tokens, usually one per row.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import Cache

from speculant_graph.types import Draft
from speculant_verifier.cache.layers import SlotLayer
from speculant_verifier.cache.pass_layout import (
    CacheLayout,
    ForwardPlan,
    MaskMaker,
    PassShape,
    Placement,
    shape_of_pass,
    sizes_of,
)

_LEAST_GROWTH = 256
_LEAST_RECORDED_GROWTH = 2_048

KeysAndValues = tuple[tuple[Tensor, Tensor], ...]
"""Keys and values of one row, one pair per layer, ``[kv_heads, positions, head_dim]`` each."""


class SlotCache(Cache):
    """KV cache of all layers for a ragged batch, with the placement of the next pass."""

    def __init__(self, layout: CacheLayout, num_rows: int, *, widest_pass: int | None = None) -> None:
        """Create an empty cache; it allocates memory on first use.

        Args:
            layout: the model's layout.
            num_rows: number of sequences.
            widest_pass: maximum number of nodes per row in one pass, which determines the ring size; None for any
                number, without rings.
        """
        self.layout, self.num_rows, self.capacity = layout, num_rows, 0
        self.max_slots: int | None = None
        """Maximum size to which the cache grows automatically, in slots of all rows together; None for no limit."""
        self.lengths = [0] * num_rows
        """Number of committed tokens per row. Callers must not change this list, because the cache's methods maintain
        it."""
        self._written = [0] * num_rows  # slots that may have contents, including rejected nodes
        self._ring = layout.ring_slots(widest_pass)
        self._full_masks, self._sliding_masks = MaskMaker(layout), MaskMaker(layout, layout.window)
        self._slot_layers = [SlotLayer(num_rows, 0) for sliding in layout.is_sliding]
        self.recordings: dict[Hashable, Any] = {}
        """Passes recorded as CUDA graphs over the cache's buffers; they are dropped when the buffers are resized."""
        super().__init__(layers=list(self._slot_layers))

    def _slots_of(self, is_sliding: bool, capacity: int) -> int:
        return min(self._ring, capacity) if is_sliding and self._ring else capacity

    @property
    def most_slots(self) -> int | None:
        """Maximum number of slots per row if all rows together may take ``max_slots``; None for no maximum."""
        if self.max_slots is None or not self.num_rows:
            return None
        return self.max_slots // self.num_rows // self.layout.step * self.layout.step

    @property
    def num_bytes(self) -> int:
        """Size of the cache in bytes; 0 before the first pass."""
        return sum(layer.num_bytes for layer in self._slot_layers)

    def slots_needed(self, num_rows: int, longest: int) -> int:
        """Return how many slots ``num_rows`` rows take if each has space for ``longest`` tokens and draft nodes.

        ``longest`` is the length of the longest row plus the width of the widest pass, because a pass pads all rows to
        the same width.
        """
        return num_rows * self.layout.round_up(longest)

    @torch.inference_mode()
    def resize(self, num_rows: int, capacity: int) -> None:
        """Change the number of rows and of slots per row, layer by layer to save memory; the contents are kept.

        Raises:
            ValueError: rows or slots to be removed have committed tokens.
        """
        capacity = self.layout.round_up(capacity)
        if any(self.lengths[num_rows:]) or max(self.lengths, default=0) > capacity:
            raise ValueError("a cache can't shrink below its contents; clear rows first")
        if (num_rows, capacity) != (self.num_rows, self.capacity):
            self.recordings.clear()
        # If memory runs out midway, the cache keeps the size that all layers have in common.
        self._set_size(min(num_rows, self.num_rows), min(capacity, self.capacity))
        for layer, is_sliding in zip(self._slot_layers, self.layout.is_sliding, strict=True):
            layer.resize(num_rows, self._slots_of(is_sliding, capacity))
        self._set_size(num_rows, capacity)

    def _set_size(self, num_rows: int, capacity: int) -> None:
        self.num_rows, self.capacity = num_rows, capacity
        more = [0] * (num_rows - len(self.lengths))
        self.lengths = self.lengths[:num_rows] + more
        self._written = self._written[:num_rows] + more

    def reserve(self, num_slots: int) -> None:
        """Ensure space for ``num_slots`` slots per row, with some headroom if ``max_slots`` permits.

        Raises:
            ValueError: rows times slots would exceed the limit (see :meth:`slots_needed`).
        """
        if num_slots <= self.capacity:
            return
        growth = max(_LEAST_GROWTH, self.capacity // 4)
        if self.layout.rounds:  # recorded passes are lost with the buffers
            growth = max(_LEAST_RECORDED_GROWTH, self.capacity)
        capacity = self.layout.round_up(max(num_slots, self.capacity + growth))
        if self.max_slots is not None and self.num_rows * capacity > self.max_slots:
            capacity = max(num_slots, self.most_slots or 0)
            if self.slots_needed(self.num_rows, capacity) > self.max_slots:
                raise ValueError(f"{self.num_rows} rows of {num_slots} slots do not fit into {self.max_slots} slots")
        self.resize(self.num_rows, capacity)

    @torch.inference_mode()
    def clear(self, row: int) -> None:
        """Clear a row, so that another sequence can use it.

        The row's slots are zeroed: attention only multiplies masked slots by zero, and a NaN of the former sequence
        would survive the multiplication.
        """
        for layer in self._slot_layers:
            layer.wipe(row, 0, min(self._written[row], layer.num_slots))
        self.lengths[row] = self._written[row] = 0

    @torch.inference_mode()
    def move_row(self, source: int, target: int) -> None:
        """Move a row to another index and overwrite the row there; the source is then empty.

        Rows are moved to make the rows of a pass adjacent. A pass reads adjacent rows in place, but must copy other
        rows to gather them.
        """
        if source == target:
            return
        for layer in self._slot_layers:
            end = min(self._written[source], layer.num_slots)
            layer.copy_row(source, target, end)
            layer.wipe(target, end, min(self._written[target], layer.num_slots))
        self.lengths[target], self._written[target] = self.lengths[source], self._written[source]
        self.clear(source)

    @property
    def is_empty(self) -> bool:
        """Whether no pass has run yet, so no row has keys and values."""
        return not self._slot_layers[0].is_initialized

    @torch.inference_mode()
    def read(self, row: int, start: int, stop: int, *, sliding: bool) -> KeysAndValues:
        """Return copies of a row's keys and values at the positions from ``start`` up to ``stop``.

        Args:
            row: the row to read; at least one pass must have run.
            start: first position.
            stop: end position, exclusive. Sliding-window layers contain only the positions of the window before the
                row's next position.
            sliding: whether to read sliding-window layers instead of full-attention layers.
        """
        return tuple(layer.read(row, slots) for layer, slots in self._positions(start, stop, sliding=sliding))

    @torch.inference_mode()
    def write(self, row: int, start: int, contents: KeysAndValues, *, sliding: bool, length: int) -> None:
        """Write the first ``length`` positions of a :meth:`read` result to a row, which must have space for them.

        Args:
            row: any row.
            start: position in the row at which the contents start.
            contents: a result of :meth:`read`.
            sliding: as for :meth:`read`.
            length: number of positions to write.
        """
        layers = self._positions(start, start + length, sliding=sliding)
        for (layer, slots), (keys, values) in zip(layers, contents, strict=True):
            layer.write(row, slots, keys[:, :length], values[:, :length])

    def set_length(self, row: int, length: int) -> None:
        """Set a row's number of committed positions after :meth:`write` has filled them."""
        self.lengths[row] = length
        self._written[row] = max(self._written[row], length)

    def _positions(self, start: int, stop: int, *, sliding: bool) -> Iterator[tuple[SlotLayer, Tensor | slice]]:
        slots: Tensor | slice = slice(start, stop)
        if sliding and self._ring is not None:
            slots = torch.arange(start, stop, device=self.layout.device) % self._ring
        for layer, is_sliding in zip(self._slot_layers, self.layout.is_sliding, strict=True):
            if is_sliding == sliding:
                yield layer, slots

    def block_of(self, rows: Sequence[int]) -> range:
        """Return all rows that a padded pass over ``rows`` computes: from 0 to the highest, their number rounded up.

        Padding is harmless for rows that do not take part, because the pass writes only to slots beyond their length.
        """
        return range(min(self.layout.round_rows(max(rows) + 1), self.num_rows))

    @torch.inference_mode()
    def plan(
        self,
        rows: Sequence[int],
        pending: Sequence[int],
        drafts: Sequence[Draft] | None = None,
        num_written: int = 0,
    ) -> ForwardPlan:
        """Plan a pass over each row's pending tokens and the draft tree below its last pending token.

        Args:
            rows: the n rows of the pass.
            pending: number of pending tokens of each row, at least 1.
            drafts: the tree below the pending tokens of each row; None for no drafts (a chunk of a prompt).
            num_written: number of nodes per row, counted from the first pending token, that earlier passes wrote since
                the last commit. The pass covers only the remaining nodes, so that trees can grow pass by pass.

        Returns:
            Positions and masks for the model's forward pass. Rows are padded to T = ``position_ids.shape[1]`` nodes.
        """
        rounded = self._width(rows, max(sizes_of(pending, drafts))) if self.layout.rounds else None
        shape = shape_of_pass([self.lengths[row] for row in rows], pending, drafts, rounded)
        width = shape.depths.shape[1]
        end = int(shape.lengths.max()) + width
        self.reserve(end)
        assert self._ring is None or width + (self.layout.window or 0) <= self._ring + 1, "wider than widest_pass"
        for row in rows:
            self._written[row] = max(self._written[row], self.lengths[row] + width)
        full = sliding = None
        full_placement = sliding_placement = None
        columns = min(self.layout.round_columns(end), self.capacity)
        if not all(self.layout.is_sliding):
            full_placement = self._placement(rows, shape, self.capacity, columns, num_written)
            full = self._full_masks.make(shape, columns, self.capacity, num_written)
        if self.layout.window is not None:
            ring = self._ring or self.capacity
            columns = min(columns, ring)
            sliding_placement = self._placement(rows, shape, ring, columns, num_written)
            sliding = self._sliding_masks.make(shape, columns, ring, num_written)
        positions = shape.lengths[:, None] + shape.depths[:, num_written:]
        position_ids = torch.from_numpy(positions).to(self.layout.device, non_blocking=True)
        plan = ForwardPlan(position_ids, full, sliding, full_placement, sliding_placement)
        self.place(plan)
        return plan

    def place(self, plan: ForwardPlan) -> None:
        """Set the slots that every layer writes and reads in the next pass."""
        for layer, is_sliding in zip(self._slot_layers, self.layout.is_sliding, strict=True):
            layer.placement = plan.sliding_placement if is_sliding else plan.full_placement

    def _width(self, rows: Sequence[int], width: int) -> int:
        """Return the width to which the rows of a pass are padded: the rounded width if it fits, else ``width``."""
        rounded = self.layout.round_width(width)
        end = max(self.lengths[row] for row in rows) + rounded
        is_too_wide = self._ring is not None and rounded + (self.layout.window or 0) > self._ring + 1
        is_too_long = self.most_slots is not None and end > max(self.capacity, self.most_slots)
        return width if is_too_wide or is_too_long else rounded

    def _placement(self, rows: Sequence[int], shape: PassShape, ring: int, columns: int, num_written: int) -> Placement:
        count = len(shape.depths)
        indices = (shape.lengths[:, None] + np.arange(num_written, shape.depths.shape[1])) % ring
        start, width = int(indices[0, 0]), indices.shape[1]
        is_block = list(rows) == list(range(rows[0], rows[0] + count))
        return Placement(
            rows=torch.from_numpy(np.array(rows)).to(self.layout.device, non_blocking=True),
            slots=torch.from_numpy(indices).to(self.layout.device, non_blocking=True),
            columns=columns,
            block=slice(rows[0], rows[0] + count) if is_block else None,
            run=(rows[0], start) if count == 1 and start + width <= ring else None,
        )

    def commit_all(self, rows: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
        """Commit nodes of the last pass; all other nodes stay beyond their row's length and are thus rolled back.

        Only nodes that must move are copied, for all rows together; the result is as if all reads came before all
        writes.

        Args:
            rows: rows of the last pass, all or some, in any order.
            paths: per row, the indices in the pass of the nodes to keep: first all m pending tokens, 0 to m - 1, then
                the accepted path below them, where draft node j has the index m + j. If no node of a path must move, a
                ``range`` from 0 is the cheapest form of the path.
        """
        moved = [
            (row, self.lengths[row] + node, self.lengths[row] + index)
            for row, path in zip(rows, paths, strict=True)
            if not isinstance(path, range) or path.step != 1 or path.start != 0
            for index, node in enumerate(path)
            if node != index
        ]
        if moved:
            self._move(np.array(moved).T)
        for row, path in zip(rows, paths, strict=True):
            self.lengths[row] += len(path)

    @torch.inference_mode()
    def _move(self, moved: np.ndarray[tuple[int, int], np.dtype[np.int64]]) -> None:
        plain = torch.from_numpy(np.ascontiguousarray(moved)).to(self.layout.device)
        ringed = plain if self._ring is None else torch.stack([plain[0], *(plain[1:] % self._ring)])
        for layer, is_sliding in zip(self._slot_layers, self.layout.is_sliding, strict=True):
            rows, source, target = ringed if is_sliding else plain
            layer.move(rows, source, target)
