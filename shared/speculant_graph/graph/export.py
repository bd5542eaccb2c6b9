"""A graph as a NetworkX DiGraph, for analysis and drawing. Small graphs only: about a kilobyte per edge."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import networkx as nx
import numpy as np

from speculant_graph.errors import ConfigError
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.graph.trie import Trie

Ngram = tuple[int, ...]


def to_networkx(
    graph: NgramGraph, decode: Callable[[Sequence[int]], str] | None = None, max_edges: int = 1_000_000
) -> nx.DiGraph[int | Ngram]:
    """Return the whole graph as objects.

    Nodes are tokens (int; attributes ``token_id``, ``text``, ``count``) and contexts of 1 to N tokens that
    have successors (tuple; no attributes). Edges run from a context to a token that followed it: ``count``,
    ``weight`` = P(token | context), ``order`` = length of the context.

    Args:
        graph: the graph.
        decode: token ids to text, for the attribute ``text``, which is empty without it.
        max_edges: refuse larger graphs.

    Raises:
        ConfigError: the graph has more edges.
    """
    num_edges = sum(graph.metadata.transitions_per_order)
    if num_edges > max_edges:
        raise ConfigError(f"the graph has {num_edges} edges, more than max_edges={max_edges}; raise max_edges")
    exported: nx.DiGraph[int | Ngram] = nx.DiGraph()
    trie = graph.trie
    for token_id, count in zip(trie.token_ids[0].tolist(), trie.counts[0].tolist(), strict=True):
        exported.add_node(token_id, token_id=token_id, text=decode([token_id]) if decode else "", count=count)
    for order in range(1, graph.max_order + 1):
        exported.add_edges_from(_edges(trie, order))
    return exported


def ngrams_of_length(trie: Trie, length: int) -> np.ndarray[tuple[int, int], np.dtype[np.uint32]]:
    """Return all n-grams of one length in lexicographic order, shape ``[nodes, length]``."""
    columns = [trie.token_ids[0]]
    for level in range(1, length):
        num_children = np.diff(trie.child_offsets[level - 1])
        columns = [np.repeat(column, num_children) for column in columns] + [trie.token_ids[level]]
    return np.stack(columns, axis=1)


def _edges(trie: Trie, order: int) -> Iterator[tuple[Ngram, int, dict[str, float]]]:
    offsets = trie.child_offsets[order - 1].tolist()
    tokens, counts = trie.token_ids[order].tolist(), trie.counts[order].tolist()
    for node, context in enumerate(map(tuple, ngrams_of_length(trie, order).tolist())):
        row = range(offsets[node], offsets[node + 1])
        total = sum(counts[child] for child in row)
        for child in row:
            yield (
                context,
                tokens[child],
                {"weight": counts[child] / total, "count": counts[child], "order": order},
            )
