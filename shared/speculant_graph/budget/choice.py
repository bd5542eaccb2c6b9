"""Chooses which nodes of a batch's drafts to verify."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from speculant_graph._core import best_size
from speculant_graph.types import Draft


def chosen_nodes(
    drafts: Sequence[Draft], seconds: NDArray[np.float64], rate: float, weights: Sequence[float] | None = None
) -> list[Sequence[int]]:
    """Return the draft nodes that are worth verifying, for passes whose rows may differ in length.

    Dropping nodes is lossless only with verification rules that compare drafted tokens with the target model's own
    choice. With rules that compare the target's p with the drafter's q, a node must not be dropped once it is drawn.

    Args:
        drafts: one draft per row of the batch; a draft without path probabilities is kept whole.
        seconds: seconds that a pass takes over 0, 1, ... tokens, up to the number of rows plus the number of all nodes.
        rate: tokens that every second added by drafts must earn.
        weights: per draft, a correction factor for its probabilities.

    Returns:
        Per draft, the ascending indices of the kept nodes, including all their ancestors.
    """
    # Parents precede children: no path is more probable than its prefix, and the sort keeps equal ones in order.
    nodes = sorted(
        (-probability * (1.0 if weights is None else weights[row]), row, node)
        for row, draft in enumerate(drafts)
        for node, probability in enumerate(draft.path_probabilities)
    )
    first = len(drafts) + sum(len(draft) for draft in drafts if not draft.path_probabilities)
    num_kept = best_size([-gain for gain, _, _ in nodes], seconds[first : first + len(nodes) + 1], rate)
    kept: list[list[int]] = [[] for _ in drafts]
    for _, row, node in nodes[:num_kept]:
        kept[row].append(node)
    return [
        sorted(of_row) if draft.path_probabilities else range(len(draft))
        for draft, of_row in zip(drafts, kept, strict=True)
    ]
