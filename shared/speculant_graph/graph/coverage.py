"""How much of a text a graph knows, and how often its most frequent successor is what the text goes on with."""

from __future__ import annotations

from dataclasses import dataclass

from speculant_graph.graph.layout import UInt32Array
from speculant_graph.graph.ngrams import NgramGraph


@dataclass(frozen=True, slots=True)
class OrderCoverage:
    """One order over all positions of a text that have so many tokens before them."""

    order: int
    """Tokens of the context."""
    num_positions: int
    """Positions with at least so many tokens before them in their document."""
    num_known: int
    """Those whose context of this order has successors in the graph."""
    num_right: int
    """Those where the context's most frequent successor (of equals the lowest id) is the token that follows."""
    num_longest: int
    """Positions whose longest known context is of this order: the one a draft begins with."""
    num_longest_right: int
    """Those of them where its most frequent successor is the token that follows."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """All orders over a text."""

    num_positions: int
    """Positions with at least one token before them."""
    orders: tuple[OrderCoverage, ...]
    """Orders 1 to N."""

    @property
    def num_known(self) -> int:
        """Positions with any known context."""
        return sum(order.num_longest for order in self.orders)

    @property
    def num_right(self) -> int:
        """Positions where the most frequent successor of the longest known context is the token that follows."""
        return sum(order.num_longest_right for order in self.orders)


def measure_coverage(graph: NgramGraph, token_ids: UInt32Array) -> Coverage:
    """Walk along a text as a draft would and count what is known, for all orders at once.

    Args:
        graph: the graph.
        token_ids: the text, shape ``[num_tokens]``, with
            :data:`~speculant_graph.corpus.stream.DOCUMENT_SEPARATOR` where nothing must be known of what was before.
    """
    orders = tuple(OrderCoverage(order, *row) for order, row in enumerate(graph.core.count_known(token_ids)) if order)
    return Coverage(orders[0].num_positions, orders)
