"""Trees of the most probable continuations, from any source of what may follow a path.

``specexec`` is the draft tree of SpecExec (Svirschevski et al. 2024, algorithm 2): Dijkstra's search for the paths of
the smallest sum of -log probability. (The paper expands a batch of nodes per round, because a language model takes a
batch in about the time of one node; n-grams do not.) ``beam`` is the usual alternative, the same number of nodes at
every depth.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from heapq import heappop, heappush, nsmallest
from typing import NamedTuple

from speculant_graph.types import Draft, StrategyName, TokenId

Propose = Callable[[tuple[TokenId, ...], int], tuple[Sequence[TokenId], Sequence[float]]]
"""Takes a path behind a sequence, empty for its end, and the most tokens wanted; returns the most probable tokens after
it, of equally probable ones the first first, and their probabilities, whose sum may be below 1. None if the context is
unknown."""


class _Node(NamedTuple):
    """A node that was proposed. Nodes compare by cost and then by ranks, so no two are equal and parents go first."""

    cost: float
    """-log of the path's probability."""
    ranks: tuple[int, ...]
    """At every step of the path the rank of its token among the candidates; () for the root."""
    path: tuple[TokenId, ...]


_ROOT = _Node(0.0, (), ())


class _Search:
    """What both kinds of tree do: look up what may follow, and write down what was selected."""

    def __init__(self, propose: Propose, max_branches: int) -> None:
        self._propose = propose
        self._max_branches = max_branches
        self._met_unknown = False

    def children(self, node: _Node) -> list[_Node]:
        token_ids, probabilities = self._propose(node.path, self._max_branches)
        # Written so that NaN goes, too. Stable: of equally probable candidates the first one stays first.
        possible = [pair for pair in zip(token_ids, probabilities, strict=True) if pair[1] > 0.0]
        children: dict[TokenId, _Node] = {}
        for token_id, probability in sorted(possible, key=lambda pair: -pair[1]):
            if len(children) == self._max_branches:
                break
            if token_id not in children:
                # Rounding may leave a little more than 1, and no child may pass its parent.
                cost = node.cost - math.log(min(1.0, probability))
                children[token_id] = _Node(cost, (*node.ranks, len(children)), (*node.path, token_id))
        self._met_unknown |= not children
        return list(children.values())

    def draft(self, nodes: Sequence[_Node], budget: int, strategy: StrategyName) -> Draft:
        """Write nodes as a draft; every parent stands before its children."""
        indices = {node.ranks: index for index, node in enumerate([_ROOT, *nodes])}
        return Draft(
            token_ids=tuple(node.path[-1] for node in nodes),
            parents=tuple(indices[node.ranks[:-1]] for node in nodes),
            path_probabilities=tuple(math.exp(-node.cost) for node in nodes),
            strategy=strategy,
            terminated_early=len(nodes) < budget and self._met_unknown,
        )


def draft_tree(propose: Propose, budget: int, max_depth: int, max_branches: int) -> Draft:
    """Draft the ``budget`` most probable nodes; of equally probable ones the path whose ranks are lower.

    Args:
        propose: what may follow.
        budget: most nodes; none if it is not positive.
        max_depth: longest path.
        max_branches: most children of a node.

    Returns:
        Nodes by descending path probability, parents first. It ended early if some context was unknown and there were
        fewer nodes than asked for.
    """
    search = _Search(propose, max_branches)
    selected: list[_Node] = []
    frontier = [_ROOT]
    while frontier and len(selected) < budget:
        node = heappop(frontier)
        if node.path:
            selected.append(node)
        if len(node.path) < max_depth and len(selected) < budget:
            for child in search.children(node):
                heappush(frontier, child)
    return search.draft(selected, budget, "specexec")


def draft_beam(propose: Propose, budget: int, max_depth: int, width: int, max_branches: int) -> Draft:
    """Draft the most probable nodes of every depth, among the children of those of the depth before.

    Args:
        propose: what may follow.
        budget: most nodes; none if it is not positive. The last depth may be cut short by it.
        max_depth: longest path.
        width: most nodes of one depth.
        max_branches: most children of a node.

    Returns:
        Nodes depth by depth; see :func:`draft_tree`.
    """
    search = _Search(propose, max_branches)
    selected: list[_Node] = []
    beam = [_ROOT]
    for _ in range(max_depth):
        if not beam or len(selected) >= budget:
            break
        children = [child for node in beam for child in search.children(node)]
        beam = nsmallest(min(width, budget - len(selected)), children)
        selected += beam
    return search.draft(selected, budget, "beam")
