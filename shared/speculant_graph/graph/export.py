"""A graph as an ordinary NetworkX graph in memory, and files that replace older ones when they are complete."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from speculant_graph.errors import ConfigError
from speculant_graph.graph.container import writing

if TYPE_CHECKING:
    import networkx as nx

    from speculant_graph.graph.network import Decode, Node
    from speculant_graph.graph.ngrams import NgramGraph


def to_networkx(graph: NgramGraph, decode: Decode | None = None, max_edges: int = 1_000_000) -> nx.DiGraph[Node]:
    """Return the whole graph as objects, about a kilobyte per edge.

    Nodes, edges and attributes are those of :class:`~speculant_graph.graph.network.NgramDiGraph`, which needs no
    memory; a copy can be changed.

    Args:
        graph: the graph.
        decode: token ids to text, for the attribute ``text``; the graph's tokenizer if None, as in ``NgramDiGraph``.
        max_edges: refuse larger graphs.

    Raises:
        ConfigError: the graph has more edges.
    """
    from speculant_graph.graph.network import NgramDiGraph

    view = NgramDiGraph(graph, decode)
    if view.number_of_edges() > max_edges:
        raise ConfigError(
            f"the graph has {view.number_of_edges()} edges, more than max_edges={max_edges}; raise max_edges"
        )
    return view.copy()


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a path to write a new file to, which replaces ``path`` at the end, or is gone after an error.

    Raises:
        GraphFileError: the file can't be written.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    with writing(path):
        try:
            yield temporary
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
