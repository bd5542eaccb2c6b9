"""The read-only n-gram graph and its lookups: the hot path of drafting.

Knows neither text nor strategies. Arrays may be memory-mapped and shared between processes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from speculant_graph.errors import GraphError
from speculant_graph.graph.metadata import GraphMetadata
from speculant_graph.graph.trie import Trie, UInt32Array
from speculant_graph.types import TokenId


@dataclass(frozen=True, slots=True)
class Match:
    """A context of the graph that has successors."""

    order: int
    """Length of the context in tokens."""
    node: int
    """Its number among the n-grams of this length."""


@dataclass(frozen=True, slots=True)
class Successors:
    """What followed a context: views into the graph, not copies."""

    token_ids: UInt32Array
    """Shape ``[s]``, s >= 1, ascending."""
    counts: UInt32Array
    """Shape ``[s]``, how often each followed; all positive."""


class NgramGraph:
    """All contexts of 1 to N tokens of a corpus, and how often each token followed them.

    Every lookup takes any integers as token ids; one outside the vocabulary is merely unknown.
    """

    def __init__(self, trie: Trie, metadata: GraphMetadata) -> None:
        """Wrap arrays that were built here or passed :func:`~speculant_graph.graph.trie.check_trie`."""
        self.trie = trie
        self.metadata = metadata
        self.max_order = trie.max_order
        self.vocabulary_size = metadata.tokenizer.vocabulary_size
        # An element of a memoryview is a Python integer and costs half of an array's, and bisect on it beats
        # numpy.searchsorted on rows of every length (measured: 0.1-0.6 us against 0.6-1.0 us).
        self._token_ids = _views(trie.token_ids)
        self._counts = _views(trie.counts)
        self._offsets = _views(trie.child_offsets)
        self._best = _views(trie.best_children)

    @classmethod
    def load(cls, path: str | Path, *, verify: bool = False) -> NgramGraph:
        """Open a graph file; see :func:`~speculant_graph.graph.store.load_graph`."""
        from speculant_graph.graph.store import load_graph

        return load_graph(path, verify=verify)

    def save(self, path: str | Path) -> None:
        """Write a graph file; see :func:`~speculant_graph.graph.store.save_graph`."""
        from speculant_graph.graph.store import save_graph

        save_graph(self, path)

    def match(self, context: Sequence[TokenId]) -> Match | None:
        """Return the longest end of ``context``, of at most N tokens, that was seen and has successors."""
        for order in range(min(self.max_order, len(context)), 0, -1):
            match = self.match_order(context, order)
            if match is not None:
                return match
        return None

    def match_order(self, context: Sequence[TokenId], order: int) -> Match | None:
        """Return the last ``order`` tokens of ``context`` as a match; None if they have no successors."""
        if not 0 < order <= min(self.max_order, len(context)):
            return None
        node = self._find(context[-order:])
        if node is None:
            return None
        offsets = self._offsets[order - 1]
        # An n-gram without successors can only be the end of the corpus.
        return Match(order, node) if offsets[node] < offsets[node + 1] else None

    def successors(self, match: Match) -> Successors:
        """Return the tokens that followed a context, with their counts."""
        offsets = self._offsets[match.order - 1]
        row = slice(offsets[match.node], offsets[match.node + 1])
        return Successors(self.trie.token_ids[match.order][row], self.trie.counts[match.order][row])

    def most_frequent(self, match: Match) -> TokenId:
        """Return the token that followed a context most often; of equals the lowest id."""
        return self._token_ids[match.order][self._best[match.order - 1][match.node]]

    def probability(self, context: Sequence[TokenId], token_id: TokenId) -> float:
        """Return P(token | exactly this context): its share of all successors' counts; 0 if never seen."""
        match = self.match_order(context, len(context))
        if match is None:
            return 0.0
        count = self.count([*context, token_id])
        return count / int(self.successors(match).counts.sum())

    def count(self, ngram: Sequence[TokenId]) -> int:
        """Return how often an n-gram of 1 to N+1 tokens occurs.

        Raises:
            GraphError: the n-gram is longer than what was counted, or empty.
        """
        if not 0 < len(ngram) <= self.max_order + 1:
            raise GraphError(
                f"n-grams of 1 to {self.max_order + 1} tokens are counted, not {len(ngram)}; ask for those"
            )
        node = self._find(ngram)
        return 0 if node is None else self._counts[len(ngram) - 1][node]

    def order_of(self, context: Sequence[TokenId]) -> int | None:
        """Return the order of exactly this context if it is known and has successors."""
        match = self.match_order(context, len(context))
        return None if match is None else match.order

    def _find(self, ngram: Sequence[TokenId]) -> int | None:
        node, low, high = 0, 0, len(self._token_ids[0])
        for depth, token_id in enumerate(ngram):
            if depth:
                offsets = self._offsets[depth - 1]
                low, high = offsets[node], offsets[node + 1]
            token_ids = self._token_ids[depth]
            # Token ids are compared, never used as an index, so that any integer is safe.
            node = bisect_left(token_ids, token_id, low, high)
            if node == high or token_ids[node] != token_id:
                return None
        return node


def _views(arrays: tuple[UInt32Array, ...]) -> tuple[memoryview[int], ...]:
    return tuple(array.data for array in arrays)
