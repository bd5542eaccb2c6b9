"""``speculant export``: a graph as a file for graph tools."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from pydantic import Field
from pydantic_settings import CliPositionalArg

from speculant_graph.cli.terminal import printable
from speculant_graph.settings import CommandSettings, load_settings
from speculant_graph.view.wording import counted


class ExportSettings(CommandSettings):
    """Write a graph as GEXF or GraphML, which Gephi, yEd and NetworkX read."""

    path: CliPositionalArg[Path]
    """Graph file."""
    output: Path = Path("graph.gexf")
    """Where it goes; the ending .gexf or .graphml decides."""
    max_edges: int = Field(200_000, ge=1)
    """Refuse graphs with more edges: each takes about a kilobyte of memory."""
    tokenizer: str | None = None
    """Tokenizer for the texts of tokens; the graph's own if not given."""
    json_output: bool = False
    """Print one JSON object as the last line."""


def run(arguments: Sequence[str]) -> int:
    """Export a graph file."""
    settings = load_settings(ExportSettings, "export", arguments)
    from speculant_graph.corpus.tokenize import CorpusTokenizer
    from speculant_graph.graph.export import export_graph
    from speculant_graph.graph.ngrams import NgramGraph
    from speculant_graph.log import log_to_stderr

    log_to_stderr("INFO")
    graph = NgramGraph.load(settings.path, verify=True)
    tokenizer = CorpusTokenizer.load(settings.tokenizer or graph.metadata.tokenizer.name)
    tokenizer.require(graph.metadata.tokenizer)
    export_graph(graph, settings.output, tokenizer.decode, settings.max_edges)
    edges = sum(graph.metadata.transitions_per_order)
    megabytes = settings.output.stat().st_size / 1e6
    sys.stdout.write(f"{printable(str(settings.output))}: {counted(edges, 'edge')}, {megabytes:.1f} MB\n")
    if settings.json_output:
        report = {"output": str(settings.output), "edges": edges, "file_bytes": settings.output.stat().st_size}
        sys.stdout.write(json.dumps(report) + "\n")
    return 0
