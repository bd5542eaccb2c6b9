"""SpecExec's search for the most probable paths (Svirschevski et al. 2024, arXiv 2406.02532, algorithm 2).

In every round the model expands the most probable unexpanded nodes, up to B of them in one pass, and the most probable
of the candidates join the tree. After D rounds, or as soon as all of the K best nodes that may have children are
expanded, these K are the draft. The published algorithm drafts only expanded nodes, and keeps all of them; here an
unexpanded node replaces a less probable one, so that the draft of the same rounds is never worth less.

The n-grams' draft is in the tree from the start. Below a node where n-grams have candidates, the candidates of both are
mixed (:class:`~.tree.Reliability`); all other paths have the product of the model's own probabilities.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from speculant_verifier.draft_model.passes import TopRows, candidates_of
from speculant_verifier.draft_model.tree import DraftTree, Node, Reliability

MIXED_WIDTH = 16
"""Tokens per row of the model that are learned, and mixed with the candidates of n-grams."""


class Shape(NamedTuple):
    """Limits of a tree's size."""

    num_nodes: int
    """K: most nodes."""
    max_depth: int
    """D: longest path, and most rounds."""
    max_branches: int
    """B: most nodes that one round expands, and most children of each."""


def frontier(tree: DraftTree, shape: Shape) -> list[int]:
    """Return the nodes that a round expands, the most probable first, so that parents come before their children.

    Children of a node outside the K best are outside, too, because no path is more probable than its beginning.
    """
    unseen = (
        index
        for index in (0, *tree.best(shape.num_nodes))
        if tree.nodes[index].written < 0 and tree.nodes[index].depth < shape.max_depth
    )
    return [index for index, _ in zip(unseen, range(shape.max_branches), strict=False)]


def grow(tree: DraftTree, asked: Sequence[int], rows: TopRows, reliability: Reliability, shape: Shape) -> None:
    """Add the candidates of a round: the K most probable new nodes, in this order, join the tree.

    Ties are ordered by the expansion of their parents, and children of one parent by their rank in its row.

    Args:
        tree: the tree; the probabilities of its paths are computed again.
        asked: the expanded nodes.
        rows: the model's rows, one per node, at most B wide.
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
