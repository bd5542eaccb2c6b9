"""A graph as an ordinary NetworkX graph in memory, or as a file for programs that draw graphs; small graphs only."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from speculant_graph.corpus.tokenize import lazy_decode
from speculant_graph.errors import ConfigError
from speculant_graph.graph.container import writing

if TYPE_CHECKING:
    import networkx as nx

    from speculant_graph.graph.network import Decode, Node
    from speculant_graph.graph.ngrams import NgramGraph

# Characters that XML can't hold, not even escaped.
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


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
            f"the graph has {view.number_of_edges()} edges, more than max_edges={max_edges}; "
            "raise max_edges (--max-edges)"
        )
    return view.copy()


def export_graph(
    graph: NgramGraph,
    path: str | Path,
    decode: Decode | None = None,
    max_edges: int = 1_000_000,
    format_name: Literal["gexf", "graphml"] | None = None,
) -> None:
    """Write the whole graph as GEXF or GraphML.

    Ids of nodes are ``12`` for a token and ``(3, 5)`` for a context. Control characters that XML can't hold become
    U+FFFD in the attribute ``text``.

    Args:
        graph: the graph.
        path: the file; an older one stays intact until the new one is complete.
        decode: token ids to text; the graph's tokenizer if None, as in ``NgramDiGraph``.
        max_edges: refuse larger graphs.
        format_name: the path's ending, ``.gexf`` or ``.graphml``, decides if None.

    Raises:
        ConfigError: the path has another ending and no format is given, or the graph has more edges.
        GraphFileError: the file can't be written.
    """
    import networkx as nx

    path = Path(path)
    writers: dict[str, Callable[[nx.DiGraph[Node], Path], None]] = {
        ".gexf": nx.write_gexf,
        ".graphml": nx.write_graphml,
    }
    write = writers.get(f".{format_name}" if format_name else path.suffix.lower())
    if write is None:
        raise ConfigError(f"{path} ends in neither {' nor '.join(writers)}; choose one of these or a format (--format)")
    text_of = decode or lazy_decode(graph.metadata.tokenizer)
    exported = to_networkx(graph, lambda token_ids: _NOT_XML.sub("\ufffd", text_of(token_ids)), max_edges)
    with replacing(path) as temporary:
        write(exported, temporary)


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
