"""A graph as a read-only :class:`networkx.DiGraph` whose nodes and edges are computed on access.

NetworkX keeps a graph in three mappings: node attributes, successors, predecessors. In this module, the three mappings
are views of the graph's arrays. NetworkX's algorithms therefore run on a graph of any size, and memory grows only with
the parts that the algorithms access.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, SupportsIndex

import networkx as nx
import numpy as np

from speculant_graph.corpus.tokenize import lazy_decode
from speculant_graph.graph.layout import TOKEN, TOKEN_MASK, Int64Array
from speculant_graph.graph.ngrams import Match, Ngram, NgramGraph
from speculant_graph.types import TokenId

Node = TokenId | Ngram
Decode = Callable[[Sequence[TokenId]], str]
Attributes = dict[str, Any]

if TYPE_CHECKING:
    _DiGraph = nx.DiGraph[Node]
else:
    _DiGraph = nx.DiGraph

_RECORDS_AT_A_TIME = 1 << 20


class NgramDiGraph(_DiGraph):
    """All tokens and contexts of an n-gram graph, with the counts of each context's successors.

    A node is a token (int; attributes ``token_id``, ``text``, ``count``) or a context of 1 to N tokens that has
    successors (tuple; no attributes). An edge runs from a context to a token that followed it. The attributes of an
    edge are ``weight`` = P(token | context), ``count``, and ``order`` = length of the context. ``G.graph`` describes
    the origin of the graph.

    Accessing a node, an edge or the successors of a context takes microseconds. Iterating over the predecessors of a
    token searches the whole graph. Nodes and edges are frozen, and attributes are copies. ``nx.DiGraph(G)`` and
    ``G.copy()`` make ordinary graphs in memory, which take about a kilobyte per edge.
    """

    def __new__(cls, graph: Any = None, decode: Decode | None = None, **attributes: Any) -> NgramDiGraph:  # noqa: D102
        if isinstance(graph, NgramGraph):
            return super().__new__(cls)
        # NetworkX calls a graph's class to make an empty graph for a copy, a reversal or a subgraph.
        return nx.DiGraph(graph, **attributes)  # type: ignore[return-value]

    def __init__(self, graph: NgramGraph, decode: Decode | None = None) -> None:
        """Make a NetworkX view of a graph.

        Args:
            graph: the graph.
            decode: function that converts token ids to text, for the attribute ``text``. If None, the graph's tokenizer
                is used; it is loaded at the first access to a token, and is never downloaded. If the tokenizer is not
                on this machine, the text is empty.
        """
        super().__init__()
        metadata = graph.metadata
        self.graph = {
            "tokenizer": metadata.tokenizer.name,
            "tokenizer_sha256": metadata.tokenizer.sha256,
            "vocabulary_size": metadata.tokenizer.vocabulary_size,
            "max_order": metadata.max_order,
            "num_tokens": metadata.num_tokens,
            "num_documents": metadata.num_documents,
            "min_count": metadata.min_count,
            "built_at": metadata.built_at,
        }
        self.ngrams = graph
        self._decode = decode
        nodes = _Nodes(graph, decode or lazy_decode(graph.metadata.tokenizer))
        self._node = nodes
        # Edges lead from contexts to tokens.
        self._adj = _Neighbours(nodes, lambda node: {} if _token_of(node) is not None else _Row(nodes, node))
        self._pred = _Neighbours(nodes, lambda node: {} if _token_of(node) is None else _Column(nodes, int(node)))
        nx.freeze(self)

    def number_of_edges(self, u: Node | None = None, v: Node | None = None) -> int:
        """Return the number of all edges, or the number of edges (0 or 1) from ``u`` to ``v``."""
        if u is not None:
            return super().number_of_edges(u, v)
        return sum(self.ngrams.metadata.transitions_per_order)

    def __reduce_ex__(self, _: SupportsIndex) -> tuple[Any, ...]:
        """Pickle the viewed graph."""
        return NgramDiGraph, (self.ngrams, self._decode)


class _Nodes(Mapping[Node, Attributes]):
    """Mapping from nodes to attributes; tokens come first, by ascending id, then contexts, shorter ones first."""

    def __init__(self, graph: NgramGraph, decode: Decode) -> None:
        self.ngrams = graph
        self._decode = decode

    def __len__(self) -> int:
        return self.ngrams.trie.nodes_per_level[0] + sum(self.ngrams.metadata.contexts_per_order)

    def __contains__(self, node: object) -> bool:
        token_id = _token_of(node)
        return self._match(node) is not None if token_id is None else self.ngrams.count((token_id,)) > 0

    def __getitem__(self, node: object) -> Attributes:
        if node not in self:
            raise KeyError(node)
        token_id = _token_of(node)
        if token_id is None:
            return {}
        return {"token_id": token_id, "text": self._decode([token_id]), "count": self.ngrams.count((token_id,))}

    def __iter__(self) -> Iterator[Node]:
        yield from self.ngrams.ngrams(1)[:, 0].tolist()
        for order in range(1, self.ngrams.max_order + 1):
            for context, _ in self.ngrams.contexts(order):
                yield context

    def context(self, node: object) -> tuple[Ngram, Match]:
        """Return a node as a context, with its match; raise a KeyError if the node is not a context."""
        found = self._match(node)
        if found is None:
            raise KeyError(node)
        return found

    def _match(self, node: object) -> tuple[Ngram, Match] | None:
        token_ids = tuple(map(_token_of, node)) if isinstance(node, tuple) else ()
        context = tuple(token_id for token_id in token_ids if token_id is not None)
        match = self.ngrams.match_order(context, len(context)) if len(context) == len(token_ids) else None
        return None if match is None else (context, match)

    def edge(self, context: Ngram, node: object) -> Attributes:
        """Return the attributes of the edge from a context to a token; raise a KeyError if there is no such edge."""
        token_id = _token_of(node)
        weight = 0.0 if token_id is None else self.ngrams.probability(context, token_id)
        if token_id is None or not weight:
            raise KeyError(node)
        return {"weight": weight, "count": self.ngrams.count((*context, token_id)), "order": len(context)}

    def records(self) -> Iterator[tuple[int, int, Int64Array]]:
        """Yield the last tokens of all n-grams of 2 or more tokens, as (length, index of the first n-gram, tokens)."""
        for length in range(2, self.ngrams.max_order + 2):
            tokens = self.ngrams.trie.level(length)[:-1, TOKEN]
            for start in range(0, tokens.size, _RECORDS_AT_A_TIME):
                part = tokens[start : start + _RECORDS_AT_A_TIME] & np.uint32(TOKEN_MASK)
                yield length, start, part.astype(np.int64)

    @cached_property
    def num_contexts(self) -> Int64Array:
        """Number of contexts before each token, shape ``[ids]``; cached, because counting passes over all contexts."""
        sums: Int64Array = np.zeros(TOKEN_MASK + 1, np.int64)
        for _, _, token_ids in self.records():
            sums += np.bincount(token_ids, minlength=sums.size)
        return sums


class _Neighbours(Mapping[Node, Mapping[Any, Attributes]]):
    """Mapping from nodes to their successors, or to their predecessors."""

    def __init__(self, nodes: _Nodes, neighbours_of: Callable[[Any], Mapping[Any, Attributes]]) -> None:
        self._nodes, self._of = nodes, neighbours_of

    def __len__(self) -> int:
        return len(self._nodes)

    def __iter__(self) -> Iterator[Node]:
        return iter(self._nodes)

    def __getitem__(self, node: object) -> Mapping[Any, Attributes]:
        if node not in self._nodes:
            raise KeyError(node)
        return self._of(node)


class _Row(Mapping[TokenId, Attributes]):
    """Mapping from the tokens that followed a context to the attributes of the edges."""

    def __init__(self, nodes: _Nodes, node: object) -> None:
        self._nodes = nodes
        self._context, self._match = nodes.context(node)

    def __len__(self) -> int:
        low, high = self._nodes.ngrams.core.children(self._match.order, self._match.node)
        return int(high - low)

    def __getitem__(self, node: object) -> Attributes:
        return self._nodes.edge(self._context, node)

    def __iter__(self) -> Iterator[TokenId]:
        return iter(self._nodes.ngrams.successors(self._match).token_ids.tolist())


class _Column(Mapping[Ngram, Attributes]):
    """Mapping from the contexts before a token to the attributes of the edges; iteration searches the whole graph."""

    def __init__(self, nodes: _Nodes, token_id: TokenId) -> None:
        self._nodes, self._token_id = nodes, token_id

    def __len__(self) -> int:
        return int(self._nodes.num_contexts[self._token_id])

    def __getitem__(self, node: object) -> Attributes:
        return self._nodes.edge(self._nodes.context(node)[0], self._token_id)

    def __iter__(self) -> Iterator[Ngram]:
        for length, start, token_ids in self._nodes.records():
            for record in (start + np.flatnonzero(token_ids == self._token_id)).tolist():
                yield tuple(self._nodes.ngrams.ngrams(length, record, record + 1)[0, :-1].tolist())


def _token_of(node: object) -> TokenId | None:
    return int(node) if isinstance(node, int | np.integer) else None
