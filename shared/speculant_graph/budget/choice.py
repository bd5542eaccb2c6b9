"""Which nodes of a batch's drafts are verified."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from speculant_graph._core import best_size
from speculant_graph.types import Draft


def chosen_nodes(
    drafts: Sequence[Draft], seconds: NDArray[np.float64], rate: float, weights: Sequence[float] | None = None
) -> list[Sequence[int]]:
    """Return the nodes that are worth verifying, of passes in which rows may differ in length.

    Exact only where a draft is verified by what the target would have chosen itself: rules that weigh p against q must
    not have nodes left out after they were seen.

    Args:
        drafts: of every row of the batch. Those without path probabilities stay whole.
        seconds: of passes over 0, 1, ... tokens, up to the rows and all their nodes.
        rate: tokens that a second must earn.
        weights: of every draft, what its probabilities are multiplied by to be believed.

    Returns:
        Per draft the indices of its nodes, ascending, each with all its ancestors.
    """
    # Parents stay before their children: no path is more probable than its beginning, and equals stay in order.
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
