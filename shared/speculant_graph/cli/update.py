"""``speculant update``: more text into a graph."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic_settings import CliPositionalArg

from speculant_graph.config import GraphConfig
from speculant_graph.settings import CommandSettings, TypedPath, load_settings


class UpdateSettings(CommandSettings):
    """Add text to a graph: the result is what a build of all the text would have made."""

    path: CliPositionalArg[Path]
    """Graph file."""
    corpus: CliPositionalArg[list[TypedPath]]
    """New files, folders, patterns; '-' for standard input. They follow what was counted before."""
    output: Path | None = None
    """Where the new graph goes; without it, it replaces the old one when it is complete."""
    json_output: bool = False
    """Print one JSON object as the last line."""
    graph: GraphConfig = GraphConfig()
    """How to read and count; tokenizer, orders, boundaries and special tokens are the graph's."""


def run(arguments: Sequence[str]) -> int:
    """Update a graph file; print what it holds now."""
    settings = load_settings(UpdateSettings, "update", arguments)
    from speculant_graph.cli.progress import show_progress
    from speculant_graph.cli.summary import print_graph
    from speculant_graph.graph.build.combine import update_graph
    from speculant_graph.graph.ngrams import NgramGraph
    from speculant_graph.log import log_to_stderr

    log_to_stderr("INFO")
    num_tokens = NgramGraph.load(settings.path).metadata.num_tokens
    output = settings.output or settings.path
    with show_progress() as progress:
        graph = update_graph(settings.path, settings.corpus, output, settings.graph, progress=progress)
    print_graph(output, graph, settings.json_output, added_tokens=graph.metadata.num_tokens - num_tokens)
    return 0
