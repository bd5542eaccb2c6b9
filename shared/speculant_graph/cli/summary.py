"""What a command says of the graph file that it wrote, and of what it left out."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from speculant_graph.cli.terminal import printable
from speculant_graph.view.formatting import counted

if TYPE_CHECKING:
    from speculant_graph.corpus.files import SkippedFile
    from speculant_graph.graph.ngrams import NgramGraph


_MOST_SKIPPED_SHOWN = 20


def print_graph(output: Path, graph: NgramGraph, json_output: bool, **facts: int) -> None:
    """Print one line for people and, if it is wanted, one JSON object for machines.

    Args:
        output: the file.
        graph: what is in it.
        json_output: whether the object is wanted.
        facts: further numbers for both.
    """
    metadata = graph.metadata
    more = "".join(f", {name.replace('_', ' ')} {value:,}" for name, value in facts.items())
    sys.stdout.write(f"{sentence_of(output, graph)}{more}\n")
    if json_output:
        summary = {
            "output": str(output),
            "tokens": metadata.num_tokens,
            "max_order": metadata.max_order,
            "nodes": sum(metadata.nodes_per_level),
            "nodes_per_level": list(metadata.nodes_per_level),
            "file_bytes": output.stat().st_size,
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


def lines_of_skipped(skipped: Sequence[SkippedFile]) -> str:
    """Return a line for every file that was left out, up to a bound."""
    lines = [f"left out: {file.name}: {file.reason}" for file in skipped[:_MOST_SKIPPED_SHOWN]]
    if len(skipped) > _MOST_SKIPPED_SHOWN:
        lines.append(f"left out: {len(skipped) - _MOST_SKIPPED_SHOWN:,} more; --json lists them all")
    return "".join(f"{printable(line)}\n" for line in lines)
