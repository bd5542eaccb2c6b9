"""What a command prints about the graph file that it wrote."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from speculant_graph.cli.terminal import printable
from speculant_graph.view.formatting import counted

if TYPE_CHECKING:
    from speculant_graph.graph.build.report import BuildReport
    from speculant_graph.graph.ngrams import NgramGraph


def print_graph(
    output: Path, graph: NgramGraph, json_output: bool, report: BuildReport | None = None, **facts: int
) -> None:
    """Print one line for people and, if it is wanted, one JSON object.

    Args:
        output: the file.
        graph: what is in it.
        json_output: whether the object is wanted.
        report: of the build, if it was one.
        facts: further counts.
    """
    metadata = graph.metadata
    counts = [f"{name.replace('_', ' ')} {value:,}" for name, value in facts.items()]
    duration = [f"{report.total_s:.1f} s"] if report else []
    sys.stdout.write(", ".join([sentence_of(output, graph), *counts, *duration]) + "\n")
    if json_output:
        summary = {
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
            **(dataclasses.asdict(report) if report else {}),
            **facts,
        }
        sys.stdout.write(json.dumps(summary) + "\n")


def sentence_of(output: Path, graph: NgramGraph) -> str:
    """Return what a graph file holds, for people; no full stop, for more may follow."""
    metadata = graph.metadata
    return (
        f"{printable(str(output))}: {counted(metadata.num_tokens, 'token')} of "
        f"{counted(len(metadata.corpus_files), 'file')}, orders 1-{metadata.max_order}, "
        f"{counted(sum(metadata.nodes_per_level), 'n-gram')}, {output.stat().st_size / 1e6:.1f} MB"
    )
