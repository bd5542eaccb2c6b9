"""``speculant merge``: one graph of two."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from pydantic_settings import CliPositionalArg

from speculant_graph.settings import CommandSettings, load_settings


class MergeSettings(CommandSettings):
    """Put two graphs together: the result is what a build of the first corpus and then the second would have made."""

    first: CliPositionalArg[Path]
    """Graph file."""
    second: CliPositionalArg[Path]
    """Graph file of the same tokenizer, orders and boundaries; its text follows the first one's."""
    output: Path
    """Where the graph of both goes; it may be one of them."""
    json_output: bool = False
    """Print one JSON object as the last line."""


def run(arguments: Sequence[str]) -> int:
    """Merge two graph files; print what the result holds."""
    settings = load_settings(MergeSettings, "merge", arguments)
    from speculant_graph.cli.progress import show_progress
    from speculant_graph.cli.summary import print_graph
    from speculant_graph.graph.build.combine import merge_graphs
    from speculant_graph.graph.ngrams import NgramGraph
    from speculant_graph.log import log_to_stderr

    log_to_stderr("INFO")
    first, second = (NgramGraph.load(path, verify=True) for path in (settings.first, settings.second))
    with show_progress() as progress:
        graph = merge_graphs(first, second, settings.output, jobs=os.cpu_count() or 1, progress=progress)
    print_graph(settings.output, graph, settings.json_output)
    return 0
