"""Graphs in layers: which may be together, and where they are read from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from speculant_graph import _core
from speculant_graph.corpus.tokenize import require_same
from speculant_graph.errors import ConfigError
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.types import Fingerprint


def load_layers(
    paths: Sequence[str | Path], tokenizer: Fingerprint | None = None, *, verify: bool = False
) -> tuple[NgramGraph, ...]:
    """Open graph files that are drafted from together.

    Args:
        paths: of the files; the first one's neural model and calibration are used.
        tokenizer: what they must have been built with, if that is known.
        verify: read all of them; see :meth:`NgramGraph.load`.

    Raises:
        ConfigError: there are too many, or one is named twice.
        GraphFileError: a file can't be read.
        TokenizerMismatchError: they are of several tokenizers, or of another one.
    """
    require_few([Path(path).resolve() for path in paths])
    graphs = tuple(NgramGraph.load(path, verify=verify) for path in paths)
    require_layers(graphs)
    if graphs and tokenizer is not None:
        require_same(graphs[0].metadata.tokenizer, tokenizer)
    return graphs


def require_layers(graphs: Sequence[NgramGraph]) -> None:
    """Refuse graphs that can't be drafted from together.

    Raises:
        ConfigError: there are too many, or one is there twice.
        TokenizerMismatchError: they are of several tokenizers.
    """
    require_few(graphs)
    for each in graphs:
        require_same(graphs[0].metadata.tokenizer, each.metadata.tokenizer)


def require_few(layers: Sequence[object]) -> None:
    """Refuse layers, by any names, of which one is named twice, or too many.

    Raises:
        ConfigError: it is so.
    """
    if len(set(layers)) < len(layers):
        raise ConfigError("a graph is named twice", fix="name every layer once", field="graph")
    if len(layers) > _core.MAX_GRAPHS:
        raise ConfigError(
            f"{len(layers)} graphs are too many layers", fix=f"give at most {_core.MAX_GRAPHS}", field="graph"
        )
