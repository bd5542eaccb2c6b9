"""The contexts of a graph as a mapping, without a dictionary of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from speculant_graph.graph.ngrams import NgramGraph


class ContextIndex(Mapping[tuple[int, ...], int]):
    """Every context that has successors -> its order; a lookup takes at most N searches in short rows."""

    def __init__(self, graph: NgramGraph) -> None:
        """Look into a graph."""
        self._graph = graph

    def __getitem__(self, context: tuple[int, ...]) -> int:
        is_context = isinstance(context, tuple) and all(type(token_id) is int for token_id in context)
        order = self._graph.order_of(context) if is_context else None
        if order is None:
            raise KeyError(context)
        return order

    def __len__(self) -> int:
        return sum(self._graph.metadata.contexts_per_order)

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        """Yield the contexts, shorter ones first, in lexicographic order."""
        for order in range(1, self._graph.max_order + 1):
            for context, _ in self._graph.contexts(order):
                yield context
