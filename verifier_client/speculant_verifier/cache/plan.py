"""From trees of tokens to positions and visibility: what one pass over ragged rows looks like, worked out on the host.

A row's pass is a chain of pending tokens, committed by definition, and a draft whose root is the last of them. Node i
of the pass is written to the row's slot ``length + i``. It sees the committed tokens, its ancestors and itself; its
position goes by its depth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from speculant_graph.types import Draft

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

    @property
    def positions(self) -> Integers:
        """``[n, T]``."""
        return self.lengths[:, None] + self.depths


def shape_of_pass(
    lengths: Sequence[int], pending: Sequence[int], drafts: Sequence[Draft] | None, width: int
) -> PassShape:
    """Work out depths and ancestors of all rows.

    Args:
        lengths: committed tokens of each row.
        pending: pending tokens of each row, at least 1.
        drafts: the tree below the last pending token of each row; None for no drafts.
        width: T, at least what the longest row needs.
    """
    sizes = sizes_of(pending, drafts)
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
    return [chain + len(draft) for chain, draft in zip(pending, drafts, strict=True)]


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
