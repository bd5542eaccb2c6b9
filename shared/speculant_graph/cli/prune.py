"""``speculant prune``: a graph without what is rare."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from pydantic import Field
from pydantic_settings import CliPositionalArg

from speculant_graph.settings import CommandSettings, load_settings


class PruneSettings(CommandSettings):
    """Drop n-grams that occur rarely. What remains is exact, but the graph can't be updated or merged any more."""

    path: CliPositionalArg[Path]
    """Graph file."""
    output: Path
    """Where the smaller graph goes; it may be the same file."""
    min_count: int = Field(2, ge=2)
    """N-grams that occur less often are dropped; the file remembers it."""
    json_output: bool = False
    """Print one JSON object as the last line."""


def run(arguments: Sequence[str]) -> int:
    """Prune a graph file; print what is left."""
    settings = load_settings(PruneSettings, "prune", arguments)
    from speculant_graph.cli.progress import show_progress
    from speculant_graph.cli.summary import print_graph
    from speculant_graph.graph.build.combine import prune_graph
    from speculant_graph.graph.ngrams import NgramGraph
    from speculant_graph.log import log_to_stderr

    log_to_stderr("INFO")
    old = NgramGraph.load(settings.path, verify=True)
    with show_progress() as progress:
        graph = prune_graph(old, settings.min_count, settings.output, jobs=os.cpu_count() or 1, progress=progress)
    removed = sum(old.trie.nodes_per_level) - sum(graph.trie.nodes_per_level)
    print_graph(settings.output, graph, settings.json_output, min_count=settings.min_count, removed_nodes=removed)
    return 0
