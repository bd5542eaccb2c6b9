"""``speculant export``: a graph as a file for graph tools, or for llama.cpp."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field
from pydantic_settings import CliPositionalArg

from speculant_graph.cli.terminal import printable
from speculant_graph.errors import ConfigError
from speculant_graph.settings import CommandSettings, load_settings
from speculant_graph.view.formatting import counted

if TYPE_CHECKING:
    from speculant_graph.graph.ngrams import NgramGraph


class ExportSettings(CommandSettings):
    """Write a graph as GEXF or GraphML, which Gephi, yEd and NetworkX read, or as llama.cpp's lookup cache."""

    path: CliPositionalArg[Path]
    """Graph file."""
    output: Path | None = None
    """Where it goes; graph.gexf, graph.graphml or lookup.bin if not given."""
    format: Literal["gexf", "graphml", "llama-lookup"] | None = None
    """llama-lookup is for 'llama-server --spec-type ngram-cache --lookup-cache-dynamic FILE'; without a format the
    ending .gexf or .graphml decides."""
    max_edges: int = Field(200_000, ge=1)
    """Refuse graphs with more edges: each takes about a kilobyte of memory. Not for llama-lookup."""
    min_count: int = Field(1, ge=1)
    """For llama-lookup: contexts that occur less often are left out, for a smaller file."""
    min_share: float = Field(0.6, ge=0.0, le=1.0)
    """For llama-lookup: contexts are left out whose most frequent successor makes up less of what followed them."""
    tokenizer: str | None = None
    """Tokenizer for the texts of tokens; the graph's own if not given. llama-lookup needs none, but compares one that
    is given with the graph's."""
    json_output: bool = False
    """Print one JSON object as the last line."""


_OUTPUTS = {None: "graph.gexf", "gexf": "graph.gexf", "graphml": "graph.graphml", "llama-lookup": "lookup.bin"}


def run(arguments: Sequence[str]) -> int:
    """Export a graph file."""
    settings = load_settings(ExportSettings, "export", arguments)
    from speculant_graph.graph.ngrams import NgramGraph
    from speculant_graph.log import log_to_stderr

    log_to_stderr("INFO")
    graph = NgramGraph.load(settings.path, verify=True)
    output = settings.output or Path(_OUTPUTS[settings.format])
    if output.exists() and output.samefile(settings.path):
        raise ConfigError(f"{output} is the graph itself; name another --output")
    export = _export_lookup if settings.format == "llama-lookup" else _export
    counts = export(graph, output, settings)
    file_bytes = output.stat().st_size
    held = ", ".join(counted(count, name.removesuffix("s")) for name, count in counts.items())
    sys.stdout.write(f"{printable(str(output))}: {held}, {file_bytes / 1e6:.1f} MB\n")
    if settings.json_output:
        report = {"output": str(output), **counts, "file_bytes": file_bytes}
        sys.stdout.write(json.dumps(report) + "\n")
    return 0


def _export(graph: NgramGraph, output: Path, settings: ExportSettings) -> dict[str, int]:
    """Write a file for graph tools; return what it holds."""
    from speculant_graph.corpus.tokenize import CorpusTokenizer
    from speculant_graph.graph.export import export_graph

    assert settings.format != "llama-lookup"
    tokenizer = CorpusTokenizer.load(settings.tokenizer or graph.metadata.tokenizer.name)
    tokenizer.require(graph.metadata.tokenizer)
    export_graph(graph, output, tokenizer.decode, settings.max_edges, settings.format)
    return {"edges": sum(graph.metadata.transitions_per_order)}


def _export_lookup(graph: NgramGraph, output: Path, settings: ExportSettings) -> dict[str, int]:
    """Write a lookup cache of llama.cpp; return what it holds."""
    from speculant_graph.corpus.tokenize import CorpusTokenizer
    from speculant_graph.graph.llama_lookup import export_llama_lookup

    if settings.tokenizer is not None:
        CorpusTokenizer.load(settings.tokenizer).require(graph.metadata.tokenizer)
    num_contexts = export_llama_lookup(graph, output, min_count=settings.min_count, min_share=settings.min_share)
    return {"contexts": num_contexts}
