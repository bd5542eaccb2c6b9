"""``speculant build``: text files into one graph file."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from pydantic_settings import CliPositionalArg

from speculant_graph.config import GraphConfig
from speculant_graph.settings import CommandSettings, TypedPath, load_settings


class BuildSettings(CommandSettings):
    """Count text files into a graph file."""

    corpus: CliPositionalArg[list[TypedPath]]
    """Text files, and folders that are searched for them."""
    output: Path = Path("graph.pkl")
    """Where the graph goes. An older file there stays intact until the new one is complete."""
    json_output: bool = False
    """Print one JSON object as the last line."""
    graph: GraphConfig = GraphConfig()
    """How to build."""


def run(arguments: Sequence[str]) -> int:
    """Build and save; print what the graph holds."""
    settings = load_settings(BuildSettings, "build", arguments)
    from speculant_graph.cli.progress import show_progress
    from speculant_graph.corpus.loaders import list_corpus_files
    from speculant_graph.graph.builder import GraphBuilder

    started = time.monotonic()
    builder = GraphBuilder(**settings.graph.model_dump())
    files = list_corpus_files(settings.corpus)
    with show_progress(f"{len(files)} files") as progress:
        graph = builder.build_from_files(files, progress=progress)
        builder.save(settings.output, progress=progress)
    seconds = time.monotonic() - started
    summary = {
        "output": str(settings.output),
        "files": len(files),
        "tokens": graph.metadata.num_tokens,
        "max_order": graph.metadata.max_order,
        "transitions_per_order": list(graph.metadata.transitions_per_order),
        "file_bytes": settings.output.stat().st_size,
        "seconds": round(seconds, 2),
    }
    sys.stdout.write(
        f"{settings.output}: {summary['tokens']:,} tokens of {len(files):,} files, orders 1-{summary['max_order']}, "
        f"{sum(graph.metadata.transitions_per_order):,} transitions, {settings.output.stat().st_size / 1e6:.1f} MB, "
        f"{seconds:.1f} s\n"
    )
    if settings.json_output:
        sys.stdout.write(json.dumps(summary) + "\n")
    return 0
