"""SpecExec's search for the most probable paths (Svirschevski et al. 2024, arXiv 2406.02532, algorithm 2).

In every round, one pass of the model expands the B most probable unexpanded nodes, or all of them if there are fewer.
The most probable candidates of the round are then added to the tree. The search ends after D rounds, or once each of
the K most probable nodes is expanded or too deep for children. The K most probable nodes are the draft. The published
algorithm drafts exactly the expanded nodes. In this implementation, an unexpanded node may replace a less probable
expanded node. After the same number of rounds, the draft is therefore at least as good as the published algorithm's
draft.

The tree starts with the n-gram draft. Where n-grams have candidates, these are mixed with the model's candidates
(:class:`~.tree.Reliability`). Where n-grams have no candidates, a path's probability is the product of the model's
probabilities.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from speculant_verifier.draft_model.passes import TopRows, candidates_of
from speculant_verifier.draft_model.tree import DraftTree, Node, Reliability

MIXED_WIDTH = 16
"""Number of the model's top tokens per node that are mixed with n-gram candidates and used for learning."""


class Shape(NamedTuple):
    """Size limits of a draft tree, named as in SpecExec's paper."""

    num_nodes: int
    """K: maximum number of nodes."""
    max_depth: int
    """D: maximum depth of the tree, and maximum number of rounds of the search."""
    max_branches: int
    """B: maximum number of nodes that a round expands, and maximum number of children of a node."""


def frontier(tree: DraftTree, shape: Shape) -> list[int]:
    """Return the nodes to expand in this round, the most probable first, so parents come before their children.

    Other nodes need no expansion: their children can't be among the K most probable nodes, because no path is more
    probable than its prefix.
    """
    unseen = (
        index
        for index in (0, *tree.best(shape.num_nodes))
        if tree.nodes[index].written < 0 and tree.nodes[index].depth < shape.max_depth
    )
    return [index for index, _ in zip(unseen, range(shape.max_branches), strict=False)]


def grow(tree: DraftTree, asked: Sequence[int], rows: TopRows, reliability: Reliability, shape: Shape) -> None:
    """Add the K most probable new candidates of a round to the tree, in descending order of probability.

    Candidates of equal probability keep the order of their parents in ``asked``, then their rank among their siblings.

    Args:
        tree: the tree; its path probabilities are recomputed.
        asked: the nodes that this round expanded.
        rows: the model's top tokens: one row per node, with at most B tokens.
        reliability: mixes the candidates.
        shape: K and B.
    """
    token_ids, conditionals = rows.token_ids.copy(), rows.probabilities
    for place, (index, row) in enumerate(zip(asked, candidates_of(rows, MIXED_WIDTH), strict=True)):
        tree.nodes[index].row = row
        if tree.nodes[index].ngrams:
            added = tree.mix_in(index, row, reliability, shape.max_branches)
            conditionals[place] = 0.0
            token_ids[place, : len(added)] = [each.token_id for each in added]
            conditionals[place, : len(added)] = [each.probability for each in added]
    tree.update()
    paths = np.array([tree.nodes[index].path for index in asked])[:, None] * conditionals
    best = np.argsort(-paths, axis=None, kind="stable")[: shape.num_nodes]
    places, ranks = np.unravel_index(best[paths.flat[best] > 0.0], paths.shape)
    for place, token_id, conditional, path in zip(
        places.tolist(), token_ids[places, ranks].tolist(), conditionals[places, ranks].tolist(),
        paths[places, ranks].tolist(), strict=True,
    ):  # fmt: skip
        parent = tree.nodes[asked[place]]
        parent.children.append(len(tree.nodes))
        tree.nodes.append(Node(token_id, asked[place], parent.depth + 1, conditional, "model", path))
