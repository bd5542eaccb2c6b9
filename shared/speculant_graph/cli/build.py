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
    from speculant_graph.graph.build.report import BuildReport
    from speculant_graph.graph.ngrams import NgramGraph


class BuildSettings(CommandSettings):
    """Count a corpus into a graph file."""

    corpus: CliPositionalArg[list[TypedPath]]
    """Files of text, JSON Lines, JSON or PDF, packed by gzip or zstd or not; folders, which are searched for all of
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
    from speculant_graph.cli.summary import lines_of_skipped, sentence_of
    from speculant_graph.draft.pretraining import pretrain
    from speculant_graph.graph.build.builder import GraphBuilder
    from speculant_graph.log import log_to_stderr

    builder = GraphBuilder(**settings.graph.model_dump())
    log_to_stderr("INFO")
    with show_progress() as progress:
        graph = builder.build(settings.corpus, settings.output, progress=progress, calibrate=pretrain)
    assert builder.report is not None
    summary = _summary(settings.output, graph, builder.report)
    sys.stdout.write(f"{sentence_of(settings.output, graph)}, {_duration(builder.report)}\n")
    sys.stdout.write(lines_of_skipped(builder.report.skipped))
    if settings.json_output:
        sys.stdout.write(json.dumps(summary) + "\n")
    return 0


def _duration(report: BuildReport) -> str:
    return f"{report.total_s:.1f} s"


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
        "calibration_bytes": len(metadata.calibration),
        **dataclasses.asdict(report),
    }
