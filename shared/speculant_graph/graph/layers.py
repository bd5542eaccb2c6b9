"""Loads several graphs as layers of one drafter, and checks that they can be combined."""

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
    """Open graph files that serve as layers of one drafter.

    Args:
        paths: the files; drafts use the neural models of all files, but only the calibration of the first.
        tokenizer: the expected tokenizer of all files, if known.
        verify: whether to read and check the whole files; see :meth:`NgramGraph.load`.

    Raises:
        ConfigError: there are too many files, or a file is named twice.
        GraphFileError: a file can't be read.
        TokenizerMismatchError: the tokenizers of the files differ from each other or from ``tokenizer``.
    """
    require_few([Path(path).resolve() for path in paths])
    graphs = tuple(NgramGraph.load(path, verify=verify) for path in paths)
    for path, graph in zip(paths, graphs, strict=True):
        require_same(graph.metadata.tokenizer, tokenizer or graphs[0].metadata.tokenizer, str(path))
    return graphs


def require_layers(graphs: Sequence[NgramGraph]) -> None:
    """Raise an error if graphs can't be layers of one drafter.

    Raises:
        ConfigError: there are too many graphs, or one occurs twice.
        TokenizerMismatchError: the tokenizers of the graphs differ.
    """
    require_few(graphs)
    for number, each in enumerate(graphs, start=1):
        require_same(each.metadata.tokenizer, graphs[0].metadata.tokenizer, f"graph {number} of {len(graphs)}")


def require_few(layers: Sequence[object]) -> None:
    """Raise an error if there are too many layers, or if a layer occurs twice.

    Raises:
        ConfigError: there are too many layers, or one is named twice.
    """
    if len(set(layers)) < len(layers):
        raise ConfigError("a graph is named twice", fix="name every layer once", field="graph")
    if len(layers) > _core.MAX_GRAPHS:
        raise ConfigError(
            f"{len(layers)} graphs are too many layers", fix=f"give at most {_core.MAX_GRAPHS}", field="graph"
        )
