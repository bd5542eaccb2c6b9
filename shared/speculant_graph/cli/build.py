"""``speculant build``: text files into one graph file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic_settings import CliPositionalArg

from speculant_graph.config import GraphConfig
from speculant_graph.settings import CommandSettings, TypedPath, load_settings


class BuildSettings(CommandSettings):
    """Count a corpus into a graph file."""

    corpus: CliPositionalArg[list[TypedPath]]
    """Files of text, JSON Lines, JSON or PDF, packed by gzip or not; folders, which are searched for all of
    these but JSON; patterns such as 'docs/**/*.md'; '-' for standard input."""
    output: Path = Path("graph.pkl")
    """Where the graph goes. An older file there stays intact until the new one is complete."""
    json_output: bool = False
    """Print one JSON object as the last line."""
    graph: GraphConfig = GraphConfig()
    """How to build."""


def run(arguments: Sequence[str]) -> int:
    """Build a graph file; print what it holds."""
    settings = load_settings(BuildSettings, "build", arguments)
    from speculant_graph.cli.progress import show_progress
    from speculant_graph.cli.summary import print_graph
    from speculant_graph.draft.pretraining import pretrain
    from speculant_graph.graph.build.builder import GraphBuilder
    from speculant_graph.log import log_to_stderr

    builder = GraphBuilder(**settings.graph.model_dump())
    log_to_stderr("INFO")
    with show_progress() as progress:
        graph = builder.build(settings.corpus, settings.output, progress=progress, calibrate=pretrain)
    print_graph(settings.output, graph, settings.json_output, builder.report)
    return 0
