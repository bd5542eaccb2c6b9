"""Key-value cache of slots: ragged rows without padding, drafts verified in place, exact rollback.

Every row starts at slot 0, and a committed token's slot is its position. A forward pass over the nodes of a draft
writes row ``b`` to the slots after its committed length; rows with fewer nodes are padded with junk that the mask
hides and later passes overwrite. Rolling back is *not* advancing the length. This holds for sliding-window layers too,
because all layers keep all slots and the window is applied by **position** in the mask.

Invariant between steps: the cache holds every token of a row except the last one, which is the next pass's node 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from speculant_graph.types import Draft

_GROWTH = 256


@dataclass(frozen=True, slots=True)
class ForwardPlan:
    """What the model is called with for one pass over n rows of T nodes."""

    position_ids: Tensor
    """``[n, T]`` int64, by depth in the tree."""
    visible: Tensor
    """``[n, 1, T, hi]`` bool for layers that see everything."""
    visible_in_window: Tensor | None
    """The same inside the sliding window; None if the model has no window."""


class SlotLayer(CacheLayerMixin):
    """One layer's buffers, ``[rows, kv_heads, capacity, head_dim]``; where to write and read is the owner's plan."""

    keys: Tensor
    values: Tensor
    is_sliding = False
    is_compileable = False
    is_croppable = False

    def __init__(self, owner: SlotCache) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.owner = owner

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate on the first pass, when shapes, dtype and device are known."""
        rows, capacity = self.owner.num_rows, self.owner.capacity
        # Zeroed, never empty: a NaN in a masked slot would still poison the output (0 x NaN).
        self.keys = key_states.new_zeros(rows, key_states.shape[1], capacity, key_states.shape[3])
        self.values = value_states.new_zeros(rows, value_states.shape[1], capacity, value_states.shape[3])
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Store ``[n, kv_heads, T, head_dim]`` and return what the pass may attend to."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        owner, end = self.owner, self.owner.end
        if owner.single is not None:  # slices are several times cheaper than index tensors
            row, start = owner.single
            self.keys[row, :, start:end] = key_states[0]
            self.values[row, :, start:end] = value_states[0]
            return self.keys[row : row + 1, :, :end], self.values[row : row + 1, :, :end]
        rows, slots = owner.rows[:, None], owner.slots
        self.keys[rows, :, slots] = key_states.transpose(1, 2)
        self.values[rows, :, slots] = value_states.transpose(1, 2)
        if owner.all_rows:
            return self.keys[:, :, :end], self.values[:, :, :end]
        return self.keys[owner.rows, :, :end], self.values[owner.rows, :, :end]

    @torch.inference_mode()
    def grow(self, capacity: int) -> None:
        """Enlarge the buffers, keeping their contents."""
        if self.is_initialized:
            missing = capacity - self.keys.shape[2]
            self.keys = torch.nn.functional.pad(self.keys, (0, 0, 0, missing))
            self.values = torch.nn.functional.pad(self.values, (0, 0, 0, missing))

    @torch.inference_mode()
    def move(self, rows: Tensor, source: Tensor, target: Tensor) -> None:
        """Copy slots ``source`` of ``rows`` to slots ``target``; everything is read before anything is written."""
        self.keys[rows, :, target] = self.keys[rows, :, source]
        self.values[rows, :, target] = self.values[rows, :, source]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Part of the transformers interface: columns the pass may attend to, and their offset."""
        del query_length
        return self.owner.end, 0

    def get_seq_length(self) -> int:
        """Part of the transformers interface."""
        return self.owner.end

    def get_max_length(self) -> int:
        """Part of the transformers interface."""
        return self.owner.capacity

    def get_max_cache_shape(self) -> int:
        """Part of the transformers interface."""
        return self.owner.capacity


class SlotCache(Cache):
    """The cache of all layers, and the plan of the pass that is about to run."""

    def __init__(self, num_layers: int, num_rows: int, window: int | None, device: torch.device) -> None:
        """Make an empty cache.

        Args:
            num_layers: layers of the model.
            num_rows: sequences held at once.
            window: width of the sliding-attention window, None if no layer has one.
            device: where plans are built.
        """
        self.num_rows, self.capacity, self.window, self.device = num_rows, 0, window, device
        self.lengths = [0] * num_rows
        self.end = 0
        self.single: tuple[int, int] | None = None
        self.all_rows = False
        self.rows = self.slots = torch.zeros(0, dtype=torch.long, device=device)
        self.slot_layers = [SlotLayer(self) for _ in range(num_layers)]
        super().__init__(layers=list(self.slot_layers))

    def reserve(self, num_slots: int) -> None:
        """Make room for ``num_slots`` tokens per row, rejected nodes and padding included."""
        if num_slots > self.capacity:
            self.capacity = -(-num_slots // _GROWTH) * _GROWTH
            for layer in self.slot_layers:
                layer.grow(self.capacity)

    def clear(self, row: int) -> None:
        """Forget a row, so that another sequence may use it. Stale slots stay, and stay invisible."""
        self.lengths[row] = 0

    def wipe(self, row: int) -> None:
        """Forget a row and overwrite it with zeros: a NaN in a slot that is masked would still reach its attention."""
        self.lengths[row] = 0
        for layer in self.slot_layers:
            if layer.is_initialized:
                layer.keys[row] = 0
                layer.values[row] = 0

    def plan(self, rows: Sequence[int], num_nodes: int, drafts: Sequence[Draft] | None = None) -> ForwardPlan:
        """Prepare a pass of ``num_nodes`` (T) tokens per row: node 0 and the draft below it, padded to T.

        Args:
            rows: the n rows that take part.
            num_nodes: T, at least 1 + the longest draft.
            drafts: the tree below node 0 of each row; None for a plain run of T tokens (prefill).

        Returns:
            Positions and masks for the model's forward.
        """
        count, device = len(rows), self.device
        lengths = torch.tensor([self.lengths[row] for row in rows], device=device)
        self.end = max(self.lengths[row] for row in rows) + num_nodes
        self.reserve(self.end)
        self.single = (rows[0], self.lengths[rows[0]]) if count == 1 else None
        self.all_rows = list(rows) == list(range(self.num_rows))
        self.rows = torch.tensor(list(rows), device=device)
        self.slots = lengths[:, None] + torch.arange(num_nodes, device=device)
        depths, ancestors = _tree(drafts, count, num_nodes, device)
        # Padding must not reach beyond the model's longest context, for which some models have no position.
        longest = [num_nodes - 1] * count if drafts is None else [len(draft) for draft in drafts]
        positions = lengths[:, None] + depths.minimum(torch.tensor(longest, device=device)[:, None])
        columns = torch.arange(self.end, device=device)
        visible = (columns < lengths[:, None])[:, None].repeat(1, num_nodes, 1)
        visible.scatter_(2, self.slots[:, None].expand(-1, num_nodes, -1), ancestors)
        in_window = None
        if self.window is not None:
            slot_positions = columns.expand(count, -1).scatter(1, self.slots, positions)
            in_window = visible & (slot_positions[:, None] > positions[..., None] - self.window)
        return ForwardPlan(
            position_ids=positions,
            visible=visible[:, None],
            visible_in_window=None if in_window is None else in_window[:, None],
        )

    def commit(self, row: int, path: Sequence[int]) -> None:
        """Keep the nodes of ``path`` (root to leaf, pass-local indices, so 0 is node 0) of the last pass, in order.

        Everything else of the pass is rolled back by being left beyond the row's length.
        """
        start = self.lengths[row]
        moved = [(start + node, start + index) for index, node in enumerate(path) if node != index]
        if moved:
            source = torch.tensor([pair[0] for pair in moved], device=self.device)
            target = torch.tensor([pair[1] for pair in moved], device=self.device)
            rows = torch.full_like(source, row)
            for layer in self.slot_layers:
                layer.move(rows, source, target)
        self.lengths[row] = start + len(path)


def _tree(drafts: Sequence[Draft] | None, count: int, num_nodes: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Depths ``[n, T]`` and the ancestor-or-self relation ``[n, T, T]`` of node 0 and the draft below it."""
    run = torch.arange(num_nodes, device=device).expand(count, -1)
    lower = torch.ones(num_nodes, num_nodes, dtype=torch.bool, device=device).tril().expand(count, -1, -1)
    if drafts is None or all(draft.is_chain for draft in drafts):
        return run, lower
    depths, ancestors = run.clone(), lower.clone()
    for index, draft in enumerate(drafts):
        if draft.is_chain:
            continue
        relation = torch.eye(num_nodes, dtype=torch.bool)
        depth = list(range(num_nodes))
        for node, parent in enumerate(draft.parents, start=1):
            relation[node] |= relation[parent]
            depth[node] = depth[parent] + 1
        depths[index] = torch.tensor(depth)
        ancestors[index] = relation.to(device)
    return depths, ancestors
