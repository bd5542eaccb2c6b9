"""What a bench of drafting compares with: trees in plain Python, from the same graph."""

from __future__ import annotations

from collections.abc import Sequence

from speculant_graph.config import DraftConfig
from speculant_graph.draft.proposal_tree import GraphProposals, draft_tree
from speculant_graph.draft.session_drafter import DraftOrder
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.types import Draft, TokenId


class GraphTreeDrafter:
    """Best-first trees of the graph's shares alone, the heap in Python.

    It does less: it looks at one context a node, not at the sequence's own tokens, and calibrates nothing.
    """

    def __init__(self, graph: NgramGraph, config: DraftConfig) -> None:
        """Draft from a graph."""
        self._graph = graph
        self._config = config
        self._ends: dict[int, list[TokenId]] = {}

    def open(self, session_id: int) -> None:
        """Begin a sequence."""
        self._ends[session_id] = []

    def accept(self, session_id: int, token_ids: Sequence[TokenId]) -> None:
        """Remember as much of the sequence as the graph can match."""
        self._ends[session_id] = [*self._ends[session_id], *token_ids][-self._graph.max_order :]

    def draft(self, orders: Sequence[DraftOrder]) -> list[Draft]:
        """Draft a tree for each order."""
        return [self._draft(order) for order in orders]

    def _draft(self, order: DraftOrder) -> Draft:
        config = self._config
        source = GraphProposals(self._graph, self._ends[order.session_id])
        return draft_tree(source, order.node_budget, config.max_depth, config.beam_width, config.max_branches)
