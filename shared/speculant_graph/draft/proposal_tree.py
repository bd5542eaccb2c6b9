"""Trees of the most probable continuations, from anything that can say what may follow a node.

``specexec`` is the draft tree of SpecExec (Svirschevski et al. 2024, algorithm 2): Dijkstra's search for the paths of
the smallest sum of -log probability, with a batch of nodes per round because a language model takes a batch in about
the time of one node. ``beam`` is the usual alternative, the same number of nodes at every depth.

A source is asked for a tree's nodes in the order in which they are expanded. It may be an n-gram table, which looks at
the last few tokens, or a language model, which keeps a slot of its cache per expanded node.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import nsmallest
from typing import NamedTuple, Protocol

from speculant_graph.draft.ngram_counts import NGramCounts
from speculant_graph.errors import ConfigError
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.types import Draft, StrategyName, TokenId


@dataclass(frozen=True, slots=True)
class ExpandedNode:
    """A node of a tree whose children are asked for."""

    number: int
    """Nodes are numbered in the order in which they are expanded, from the root's 0 on: a cache's slot."""
    parent: int
    """Number of the node it is a child of, always lower; -1 for the root."""
    token_id: TokenId
    """Its token; -1 for the root, which is the sequence that the source was made for."""
    depth: int
    """Tokens after the sequence: 0 for the root."""


class Candidates(NamedTuple):
    """What may follow a node."""

    token_ids: Sequence[TokenId]
    """The most probable tokens, each once; of equally probable ones the first goes first. Empty if nothing is known."""
    probabilities: Sequence[float]
    """As many: each token's probability after the node. Their sum may be below 1; tokens left out hold the rest."""


class ProposalSource(Protocol):
    """Knows what may follow one sequence and every path from it; serves one tree."""

    def expand(self, nodes: Sequence[ExpandedNode], limit: int) -> Sequence[Candidates]:
        """Return the candidates of every node, in order.

        Args:
            nodes: at first the root alone; then nodes whose parents have been expanded by earlier calls. Numbers
                ascend without gaps over all calls.
            limit: most candidates that are of use per node.
        """


class _EndOfPath(ABC):
    """A source that looks at the last few tokens of a path."""

    def __init__(self, context: Sequence[TokenId], num_tokens: int) -> None:
        self._num_tokens = num_tokens
        self._ends = [list(context[-num_tokens:])]

    def expand(self, nodes: Sequence[ExpandedNode], limit: int) -> list[Candidates]:
        """Return the candidates of every node; see :class:`ProposalSource`."""
        self._ends.extend(
            [*self._ends[node.parent], node.token_id][-self._num_tokens :] for node in nodes if node.number
        )
        return [self._candidates(self._ends[node.number], limit) for node in nodes]

    @abstractmethod
    def _candidates(self, end: list[TokenId], limit: int) -> Candidates: ...


class GraphProposals(_EndOfPath):
    """Successors of the longest context that a graph knows, by their share of its counts."""

    def __init__(self, graph: NgramGraph, context: Sequence[TokenId]) -> None:
        """Propose from a graph.

        Args:
            graph: what to draft from.
            context: the sequence so far, or at least its last N tokens.
        """
        super().__init__(context, graph.max_order)
        self._graph = graph

    def _candidates(self, end: list[TokenId], limit: int) -> Candidates:
        match = self._graph.match(end)
        if match is None:
            return Candidates((), ())
        successors = self._graph.successors(match)
        return _shares(successors.most_common(limit), successors.total)


class StorageProposals(_EndOfPath):
    """Successors of the longest context that n-gram counts know, by their share of its counts."""

    def __init__(self, counts: NGramCounts, context: Sequence[TokenId]) -> None:
        """Propose from n-gram counts.

        Args:
            counts: what to draft from; they must not learn while a tree is drafted.
            context: the sequence so far, or at least its last n - 1 tokens.
        """
        super().__init__(context, counts.n - 1)
        self._counts = counts

    def _candidates(self, end: list[TokenId], limit: int) -> Candidates:
        successors = self._counts.successors(end)
        return _shares(successors[:limit], sum(count for _, count in successors))


def _shares(counted: Sequence[tuple[TokenId, int]], total: int) -> Candidates:
    total = max(1, total)  # a damaged file may hold zeros
    return Candidates([token_id for token_id, _ in counted], [count / total for _, count in counted])


class _Node(NamedTuple):
    """A node that was proposed. Nodes compare by cost and then by ranks, so no two are equal and parents go first."""

    cost: float
    """-log of the path's probability."""
    ranks: tuple[int, ...]
    """The path: at every step the place of its token among the candidates; () for the root."""
    token_id: TokenId


_ROOT = _Node(0.0, (), -1)


class _Search:
    """What both kinds of tree do: ask the source, and write down what was chosen."""

    def __init__(self, source: ProposalSource, max_branches: int) -> None:
        self._source = source
        self._max_branches = max_branches
        self._numbers: dict[tuple[int, ...], int] = {}
        self._met_unknown = False

    def children(self, nodes: Sequence[_Node]) -> list[_Node]:
        """Expand nodes, each for the first time."""
        asked = []
        for _, ranks, token_id in nodes:
            number = self._numbers[ranks] = len(self._numbers)
            parent = self._numbers[ranks[:-1]] if ranks else -1
            asked.append(ExpandedNode(number, parent, token_id, len(ranks)))
        answers = self._source.expand(asked, self._max_branches)
        return [child for node, answer in zip(nodes, answers, strict=True) for child in self._children_of(node, answer)]

    def _children_of(self, node: _Node, answer: Candidates) -> list[_Node]:
        # Written so that NaN goes, too. Stable: of equally probable candidates the source's order decides.
        possible = [candidate for candidate in zip(*answer, strict=True) if candidate[1] > 0.0]
        children: dict[TokenId, _Node] = {}
        for token_id, probability in sorted(possible, key=lambda candidate: -candidate[1]):
            if len(children) == self._max_branches:
                break
            if token_id not in children:
                # Rounding may leave a little more than 1, and no child may pass its parent.
                cost = node.cost - math.log(min(1.0, probability))
                children[token_id] = _Node(cost, (*node.ranks, len(children)), token_id)
        self._met_unknown |= not children
        return list(children.values())

    def draft(self, nodes: Sequence[_Node], budget: int, strategy: StrategyName) -> Draft:
        """Write nodes as a draft; every parent stands before its children."""
        places = {node.ranks: place for place, node in enumerate([_ROOT, *nodes])}
        return Draft(
            token_ids=tuple(node.token_id for node in nodes),
            parents=tuple(places[node.ranks[:-1]] for node in nodes),
            path_probabilities=tuple(math.exp(-node.cost) for node in nodes),
            strategy=strategy,
            terminated_early=len(nodes) < budget and self._met_unknown,
        )


def draft_tree(source: ProposalSource, budget: int, max_depth: int, batch: int, max_branches: int) -> Draft:
    """Draft the most probable paths: exactly the ``budget`` most probable nodes, whatever the batch.

    A node that was proposed is expanded while its descendants could still be among the most probable, a batch of the
    most probable ones per round. The published algorithm fills the tree with whatever it expands, and so keeps early
    nodes of little probability and misses better ones below the others; here the tree is cut out at the end. A larger
    batch needs fewer rounds and may expand more nodes; there are never more rounds than nodes drafted, plus one.

    Equal probabilities: the path that is first by the source's own order.

    Args:
        source: what may follow; made for one sequence, used up by this call.
        budget: most nodes; none if it is not positive.
        max_depth: longest path.
        batch: nodes expanded at once.
        max_branches: most children of a node.

    Returns:
        Nodes by descending path probability, parents first. It ended early if some context was unknown and there were
        fewer nodes than asked for.

    Raises:
        ConfigError: a limit is below 1.
    """
    _require_positive(max_depth=max_depth, batch=batch, max_branches=max_branches)
    search = _Search(source, max_branches)
    chosen: list[_Node] = []  # both ascend by cost; the frontier is what of the chosen may still be expanded
    frontier = [_ROOT] if budget > 0 else []
    while frontier:
        expanded = frontier[:batch]
        del frontier[:batch]
        for node in search.children(expanded):
            if len(chosen) < budget or node < chosen[-1]:
                insort(chosen, node)
                del chosen[budget:]
                if len(node.ranks) < max_depth:
                    insort(frontier, node)
        if len(chosen) == budget:  # what comes after the last one chosen has no descendant among the chosen
            del frontier[bisect_left(frontier, chosen[-1]) :]
    return search.draft(chosen, budget, "specexec")


def draft_beam(source: ProposalSource, budget: int, max_depth: int, width: int, max_branches: int) -> Draft:
    """Draft the most probable nodes of every depth, among the children of those of the depth before.

    Equal probabilities: the path that is first by the source's own order.

    Args:
        source: what may follow; made for one sequence, used up by this call.
        budget: most nodes; none if it is not positive. The last depth may be cut short by it.
        max_depth: longest path.
        width: most nodes of one depth.
        max_branches: most children of a node.

    Returns:
        Nodes depth by depth. It ended early if some context was unknown and there were fewer nodes than asked for.

    Raises:
        ConfigError: a limit is below 1.
    """
    _require_positive(max_depth=max_depth, width=width, max_branches=max_branches)
    search = _Search(source, max_branches)
    chosen: list[_Node] = []
    level = [_ROOT]
    for _ in range(max_depth):
        if not level or len(chosen) >= budget:
            break
        level = nsmallest(min(width, budget - len(chosen)), search.children(level))
        chosen += level
    return search.draft(chosen, budget, "beam")


def _require_positive(**limits: int) -> None:
    for name, limit in limits.items():
        if limit < 1:
            raise ConfigError(f"{name} of a draft tree is {limit}; give at least 1")
