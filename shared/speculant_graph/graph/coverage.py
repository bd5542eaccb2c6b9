"""How much of a text a graph knows, and how often its most frequent successor is what the text goes on with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from speculant_graph.graph.compiled import compiled
from speculant_graph.graph.layout import TOKEN_MASK, Int64Array, UInt32Array
from speculant_graph.graph.lookup import _advance, _best_child, _linked, _row, _width
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
    table = np.zeros((graph.max_order + 1, 5), np.int64)
    _count_known(graph.trie.words, graph.trie.table, token_ids, table)
    orders = tuple(OrderCoverage(order, *row) for order, row in enumerate(table.tolist()) if order)
    return Coverage(orders[0].num_positions, orders)


@compiled
def _count_known(words: UInt32Array, table: Int64Array, token_ids: UInt32Array, counts: Int64Array) -> None:
    """Add up the columns of :class:`OrderCoverage`, shape ``[N + 1, 5]``, a row per order."""
    max_order = table.shape[0] - 3
    order, node = np.int64(0), np.int64(0)
    before = 0
    for place in range(token_ids.size):
        token_id = np.int64(token_ids[place])
        if token_id == 0xFFFFFFFF:
            order, node, before = np.int64(0), np.int64(0), 0
            continue
        for length in range(1, min(before, max_order) + 1):
            counts[length, 0] += 1
        level, context = order, node
        while level > 0:
            low, high = _row(words, table, level, context)
            if low < high:
                child = _best_child(words, table, level, context, low, high)
                best = np.int64(words[table[level, 0] + child * _width(table, level + 1)]) & TOKEN_MASK
                counts[level, 1] += 1
                counts[level, 2] += best == token_id
                if level == order:
                    counts[level, 3] += 1
                    counts[level, 4] += best == token_id
            if level > 1:
                context = _linked(words, table, level, context)
            level -= 1
        order, node = _advance(words, table, order, node, token_id)
        before += 1
