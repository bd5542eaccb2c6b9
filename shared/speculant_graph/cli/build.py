"""``speculant build``: text files into one graph file."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic_settings import CliPositionalArg

from speculant_graph.config import GraphConfig
from speculant_graph.settings import CommandSettings, TypedPath, load_settings

if TYPE_CHECKING:
    from speculant_graph.graph.ngrams import NgramGraph
    from speculant_graph.graph.report import BuildReport

_MOST_SKIPPED_SHOWN = 20


class BuildSettings(CommandSettings):
    """Count a corpus into a graph file."""

    corpus: CliPositionalArg[list[TypedPath]]
    """Files of text, JSON Lines, JSON or PDF, packed by gzip or zstd or not; folders that are searched for them;
    patterns such as 'docs/**/*.md'; '-' for standard input."""
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
    from speculant_graph.graph.builder import GraphBuilder
    from speculant_graph.log import log_to_stderr

    builder = GraphBuilder(**settings.graph.model_dump())
    with show_progress() as progress:
        # Standard error is the bars' own now, which keeps messages out of them.
        log_to_stderr("WARNING")
        graph = builder.build(settings.corpus, settings.output, progress=progress)
    assert builder.report is not None
    summary = _summary(settings.output, graph, builder.report)
    sys.stdout.write(_sentence(summary))
    sys.stdout.write(_skipped(builder.report))
    if settings.json_output:
        sys.stdout.write(json.dumps(summary) + "\n")
    return 0


def _summary(output: Path, graph: NgramGraph, report: BuildReport) -> dict[str, object]:
    metadata = graph.metadata
    return {
        "output": str(output),
        "file_bytes": output.stat().st_size,
        "files": len(metadata.corpus_files),
        "text_bytes": sum(file.size_bytes for file in metadata.corpus_files),
        "documents": metadata.num_documents,
        "tokens": metadata.num_tokens,
        "max_order": metadata.max_order,
        "nodes": sum(metadata.nodes_per_level),
        "nodes_per_level": list(metadata.nodes_per_level),
        "contexts_per_order": list(metadata.contexts_per_order),
        **dataclasses.asdict(report),
    }


def _sentence(summary: dict[str, object]) -> str:
    return (
        "{output}: {tokens:,} tokens of {files:,} files, orders 1-{max_order}, {nodes:,} n-grams, {megabytes:.1f} MB, "
        "{total_s:.1f} s\n"
    ).format_map(summary | {"megabytes": int(str(summary["file_bytes"])) / 1e6})


def _skipped(report: BuildReport) -> str:
    if not report.skipped:
        return ""
    lines = [f"left out: {file.name}: {file.reason}" for file in report.skipped[:_MOST_SKIPPED_SHOWN]]
    if len(report.skipped) > _MOST_SKIPPED_SHOWN:
        lines.append(f"left out: {len(report.skipped) - _MOST_SKIPPED_SHOWN} more; --json lists them all")
    return "".join(f"{line}\n" for line in lines)
