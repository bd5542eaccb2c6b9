"""What a bench of drafting compares with: trees in plain Python, from the same graph and the same sessions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from speculant_graph.config import DraftConfig
from speculant_graph.draft.drafter_reference import SlowDrafter
from speculant_graph.draft.proposal_tree import GraphProposals, draft_tree
from speculant_graph.draft.session_drafter import DraftOrder
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.types import Draft, TokenId

if TYPE_CHECKING:
    from speculant_graph.graph.oracle import OracleGraph


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


class ReferenceDrafter:
    """The slow form of calibrated trees, which searches whole texts for every context; it begins without calibration.

    A dictionary of a large graph would not fit into memory, so counts come from the graph, a whole row at a time.
    """

    def __init__(self, graph: NgramGraph, config: DraftConfig) -> None:
        """Draft from a graph and from sequences."""
        self._slow = SlowDrafter(cast("OracleGraph", _GraphAsDictionary(graph)), config)

    def open(self, session_id: int) -> None:
        """Begin a sequence."""
        self._slow.open(session_id)

    def accept(self, session_id: int, token_ids: Sequence[TokenId]) -> None:
        """Add tokens, and learn from those behind the prompt."""
        self._slow.accept(session_id, token_ids)

    def draft(self, orders: Sequence[DraftOrder]) -> list[Draft]:
        """Draft a tree for each order."""
        return [self._draft(order) for order in orders]

    def _draft(self, order: DraftOrder) -> Draft:
        nodes = self._slow.draft(order.session_id, "tree", order.node_budget)
        return Draft(
            token_ids=tuple(node.path[-1] for node in nodes),
            parents=tuple(node.parent for node in nodes),
            path_probabilities=tuple(node.probability for node in nodes),
            strategy="tree",
        )


class _GraphAsDictionary:
    """As much of an :class:`~speculant_graph.graph.oracle.OracleGraph` as the slow form looks at."""

    def __init__(self, graph: NgramGraph) -> None:
        self.max_order = graph.max_order
        self.context_index = self
        self._graph = graph

    def get(self, context: tuple[TokenId, ...]) -> Counter[TokenId] | None:
        match = self._graph.match_order(context, len(context))
        return None if match is None else Counter(dict(self._graph.successors(match).most_common()))
