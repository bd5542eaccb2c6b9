"""The read-only n-gram graph and its lookups: the hot path of drafting.

This module depends on neither text nor strategies. Arrays may be memory-mapped and shared between processes and
threads.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np

from speculant_graph import _core
from speculant_graph.errors import GraphError
from speculant_graph.graph.layout import CUMULATIVE, Int64Array, Trie, UInt32Array
from speculant_graph.graph.metadata import GraphMetadata
from speculant_graph.graph.store import graph_from_pickle, pickled, read_graph, write_pickled
from speculant_graph.types import TokenId

if TYPE_CHECKING:
    from speculant_graph.graph.network import NgramDiGraph

Ngram = tuple[TokenId, ...]

_NGRAMS_AT_A_TIME = 1 << 14


@dataclass(frozen=True, slots=True)
class Match:
    """A context of the graph that has successors."""

    order: int
    """Length of the context in tokens."""
    node: int
    """Index of the context among the n-grams of this length."""


@dataclass(frozen=True, slots=True)
class Successors:
    """The successors of a context, by ascending token id."""

    token_ids: UInt32Array
    """Token ids of the successors, shape ``[s]``, ascending; a copy."""
    counts: UInt32Array
    """Count of each successor, shape ``[s]``; all counts are positive."""

    def __len__(self) -> int:
        """Number of different successors."""
        return self.token_ids.size

    @property
    def total(self) -> int:
        """Sum of the counts, the denominator of every probability."""
        return int(self.counts.sum(dtype=np.uint64))

    @property
    def probabilities(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """P(token | context) = count / total, shape ``[s]``."""
        return self.counts / max(1, self.total)

    def most_common(self, n: int | None = None) -> list[tuple[TokenId, int]]:
        """Return the n most frequent successors (all if None) with their counts; ties are ordered by id."""
        size = None if n is None else _whole(n, "n")
        ranked = np.argsort(-self.counts.astype(np.int64), kind="stable")[:size]
        return list(zip(self.token_ids[ranked].tolist(), self.counts[ranked].tolist(), strict=True))


_NETWORKX_NAMES = frozenset({
    "add_edge", "add_edges_from", "add_node", "add_nodes_from", "adj", "adjacency", "copy", "degree", "edge_subgraph",
    "edges", "get_edge_data", "graph", "has_edge", "has_node", "has_predecessor", "has_successor", "in_degree",
    "in_edges", "is_directed", "is_multigraph", "nbunch_iter", "neighbors", "nodes", "number_of_edges",
    "number_of_nodes", "order", "out_degree", "out_edges", "pred", "predecessors", "remove_edge", "remove_node",
    "reverse", "size", "subgraph", "succ", "to_directed", "to_undirected",
})  # fmt: skip
"""Names of attributes of a :class:`networkx.DiGraph`; accessing one raises an error that points to the networkx
view."""
_NO_IDS = "look-ups take a sequence of token ids; encode text with the graph's tokenizer first"
NO_SUCCESSORS = Successors(np.empty(0, np.uint32), np.empty(0, np.uint32))


class NgramGraph:
    """All contexts of 1 to N tokens in a corpus, with the number of times that each token followed them.

    Lookups accept any sequence of integers as token ids; ids outside the vocabulary match nothing. An argument that is
    not a sequence of integers raises :class:`~speculant_graph.errors.GraphError`.
    """

    def __init__(self, trie: Trie, metadata: GraphMetadata) -> None:
        """Wrap a trie; its words are read-only and may come from an untrusted file."""
        self.trie = trie
        self.metadata = metadata
        self.max_order = trie.max_order
        self.vocabulary_size = trie.vocabulary_size
        self.core = _core.Trie(trie.words, trie.table, trie.model)
        """The native core's trie, which does the lookups."""

    def __repr__(self) -> str:
        """Return the graph's sizes as text."""
        return (
            f"NgramGraph(max_order={self.max_order}, num_tokens={self.metadata.num_tokens:,}, "
            f"nodes={sum(self.trie.nodes_per_level):,}, tokenizer={self.metadata.tokenizer.name!r})"
        )

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Callable[..., NgramGraph], tuple[Any, ...]]:
        """Pickle the graph; protocol 5 gives the bytes that :meth:`save` writes."""
        return graph_from_pickle, pickled(self.trie, self.metadata, protocol.__index__())

    @classmethod
    def load(cls, path: str | Path, *, verify: bool = False, complete: bool = False) -> NgramGraph:
        """Open a graph file; its arrays stay on disk, mapped read-only, and all processes share them.

        An untrusted file is safe to open: it is not unpickled, and no code in it runs. Lookups check every index that
        they read from the file. To publish a new graph, rename its file to this path; never write into an open file.

        Args:
            path: the file, written by :meth:`save`, by a build, or by ``pickle.dump(graph, file, protocol=5)``.
            verify: whether to read all arrays and compare their checksums, which also loads the file into memory.
            complete: whether to check, in addition, all conditions that every built graph fulfils.

        Raises:
            GraphFileError: the file is not a graph, is damaged, or has a version that this release can't read.
        """
        return cls(*read_graph(path, verify=verify, complete=complete))

    def save(self, path: str | Path) -> None:
        """Write a graph file, and atomically replace an existing file.

        Raises:
            GraphFileError: the file can't be written.
        """
        write_pickled(self, path)

    def match(self, context: Sequence[TokenId]) -> Match | None:
        """Return the longest suffix of ``context``, of at most N tokens, that has successors in the graph."""
        _num_tokens(context)
        order, node = self.core.match(self._token_array(context[-self.max_order :]))
        return Match(order, node) if order else None

    def match_order(self, context: Sequence[TokenId], order: int) -> Match | None:
        """Return the last ``order`` tokens of ``context`` as a match; None if they have no successors."""
        if not 0 < _whole(order, "order") <= min(self.max_order, _num_tokens(context)):
            return None
        node = self.core.find_ngram(self._token_array(context[-order:]))
        if node < 0:
            return None
        low, high = self.core.children(order, node)
        return Match(order, node) if low < high else None

    def successors(self, context: Match | Sequence[TokenId]) -> Successors:
        """Return the tokens that followed exactly this context, with their counts; none if the context is unknown."""
        match = context if isinstance(context, Match) else self.match_order(context, _num_tokens(context))
        if match is None:
            return NO_SUCCESSORS
        low, high = self.core.children(match.order, match.node)
        return Successors(*self.core.read(match.order + 1, low, high))

    def probability(self, context: Sequence[TokenId], token_id: TokenId) -> float:
        """Return P(token | exactly this context), the token's share of all successors' counts; 0 if never seen."""
        match = self.match_order(context, _num_tokens(context))
        if match is None:
            return 0.0
        low, high = self.core.children(match.order, match.node)
        level = self.trie.level(match.order + 1)
        total = int(level[high, CUMULATIVE]) - int(level[low, CUMULATIVE])
        return self.count([*context, token_id]) / max(1, total)

    def count(self, ngram: Sequence[TokenId]) -> int:
        """Return the count of an n-gram of 1 to N+1 tokens; 0 if it never occurs or was pruned.

        Raises:
            GraphError: the n-gram is longer than N+1 tokens, or empty.
        """
        level = self.trie.level(self._length(_num_tokens(ngram)))
        node = self.core.find_ngram(self._token_array(ngram))
        if node < 0:
            return 0
        return int(level[node + 1, CUMULATIVE]) - int(level[node, CUMULATIVE])

    def counts(self, length: int) -> UInt32Array:
        """Return the counts of all n-grams of one length in lexicographic order, shape ``[n]``; a copy.

        Raises:
            GraphError: n-grams of this length are not counted.
        """
        return np.diff(self.trie.level(self._length(length))[:, CUMULATIVE])

    def ngrams(self, length: int, start: int = 0, stop: int | None = None) -> UInt32Array:
        """Return n-grams of one length in lexicographic order.

        Args:
            length: number of tokens in an n-gram, 1 to N+1.
            start: index of the first n-gram.
            stop: index after the last n-gram; None continues to the end.

        Returns:
            Token ids, shape ``[stop - start, length]``.

        Raises:
            GraphError: n-grams of this length are not counted.
        """
        size = self.trie.nodes_per_level[self._length(length) - 1]
        start, stop = _whole(start, "start"), None if stop is None else _whole(stop, "stop")
        start, stop, _ = slice(start, stop).indices(size)
        return self.core.spell(length, start, max(start, stop)).reshape(-1, length)

    def most_common(self, n: int, length: int = 1) -> list[tuple[Ngram, int]]:
        """Return the n most frequent n-grams of one length with their counts; ties are in lexicographic order.

        Raises:
            GraphError: n-grams of this length are not counted.
        """
        counts = self.counts(length)
        n = min(max(_whole(n, "n"), 0), counts.size)
        if not n:
            return []
        # Take all n-grams at least as frequent as the n-th, then sort them stably: ties stay in lexicographic order.
        threshold = np.partition(counts, counts.size - n)[counts.size - n]
        nodes = np.flatnonzero(counts >= threshold)
        nodes = nodes[np.argsort(-counts[nodes].astype(np.int64), kind="stable")][:n]
        return [(tuple(self.ngrams(length, node, node + 1)[0].tolist()), int(counts[node])) for node in nodes.tolist()]

    def contexts(self, order: int) -> Iterator[tuple[Ngram, Match]]:
        """Yield all contexts of one order that have successors, in lexicographic order.

        Raises:
            GraphError: the graph has no contexts of this order.
        """
        if not 0 < _whole(order, "order") <= self.max_order:
            raise GraphError(f"contexts have 1 to {self.max_order} tokens, not {order}; use an order in this range")
        for start in range(0, self.trie.nodes_per_level[order - 1], _NGRAMS_AT_A_TIME):
            ngrams = self.ngrams(order, start, start + _NGRAMS_AT_A_TIME)
            for node, ngram in enumerate(ngrams.tolist(), start):
                low, high = self.core.children(order, node)
                if low < high:
                    yield tuple(ngram), Match(order, node)

    @cached_property
    def context_index(self) -> ContextIndex:
        """All contexts that have successors, as a mapping from the context (a tuple) to its order."""
        return ContextIndex(self)

    @cached_property
    def nx(self) -> NgramDiGraph:
        """The graph as a read-only :class:`networkx.DiGraph` that is computed on access; see ``NgramDiGraph``."""
        from speculant_graph.graph.network import NgramDiGraph  # networkx takes half a second

        return NgramDiGraph(self)

    if not TYPE_CHECKING:  # type checkers would accept every name

        def __getattr__(self, name: str) -> Any:
            """Raise an AttributeError; for the name of a networkx method, the error points to the networkx view."""
            hint = f"; the networkx view has it: graph.nx.{name}" if name in _NETWORKX_NAMES else ""
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'{hint}", name=name, obj=self)

    def _length(self, length: int) -> int:
        if not 0 < _whole(length, "length") <= self.max_order + 1:
            raise GraphError(
                f"n-grams of 1 to {self.max_order + 1} tokens are counted, not {length}; use a length in this range"
            )
        return length

    def _token_array(self, token_ids: Sequence[TokenId]) -> Int64Array:
        try:
            array = np.asarray(token_ids)
        except ValueError:  # sequences of different lengths inside
            array = np.empty((0, 0))
        if array.dtype.kind in "iu" and array.ndim == 1:
            return array.astype(np.int64)
        if isinstance(token_ids, str) or not all(isinstance(token_id, int) for token_id in token_ids):
            raise GraphError(_NO_IDS)
        # Empty, or numbers beyond 64 bits, which are unknown.
        known = range(self.vocabulary_size)
        return np.array([token_id if token_id in known else -1 for token_id in token_ids], np.int64)


class ContextIndex(Mapping[tuple[int, ...], int]):
    """Mapping from every context with successors to its order; a lookup takes at most N searches in short rows."""

    def __init__(self, graph: NgramGraph) -> None:
        """Make an index of a graph's contexts."""
        self._graph = graph

    def __getitem__(self, context: tuple[int, ...]) -> int:
        is_context = isinstance(context, tuple) and all(type(token_id) is int for token_id in context)
        match = self._graph.match_order(context, len(context)) if is_context else None
        if match is None:
            raise KeyError(context)
        return match.order

    def __len__(self) -> int:
        return sum(self._graph.metadata.contexts_per_order)

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        """Yield the contexts, shorter ones first, in lexicographic order."""
        for order in range(1, self._graph.max_order + 1):
            for context, _ in self._graph.contexts(order):
                yield context


def _whole(value: SupportsIndex, name: str) -> int:
    try:
        return operator.index(value)
    except TypeError as error:
        raise GraphError(f"{name} must be a whole number, not of type {type(value).__name__}; give one") from error


def _num_tokens(token_ids: Sequence[TokenId]) -> int:
    if isinstance(token_ids, str | Mapping | Set):
        raise GraphError(_NO_IDS)
    try:
        return len(token_ids)
    except TypeError as error:
        raise GraphError(_NO_IDS) from error
