"""What a command says of the graph file that it wrote."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from speculant_graph.graph.ngrams import NgramGraph


def print_graph(output: Path, graph: NgramGraph, json_output: bool, **facts: int) -> None:
    """Print one line for people and, if it is wanted, one JSON object for machines.

    Args:
        output: the file.
        graph: what is in it.
        json_output: whether the object is wanted.
        facts: further numbers for both.
    """
    metadata = graph.metadata
    file_bytes = output.stat().st_size
    more = "".join(f", {name.replace('_', ' ')} {value:,}" for name, value in facts.items())
    sys.stdout.write(
        f"{output}: {metadata.num_tokens:,} tokens of {len(metadata.corpus_files):,} files, orders "
        f"1-{metadata.max_order}, {sum(metadata.nodes_per_level):,} n-grams, {file_bytes / 1e6:.1f} MB{more}\n"
    )
    if json_output:
        summary = {
            "output": str(output),
            "tokens": metadata.num_tokens,
            "max_order": metadata.max_order,
            "nodes": sum(metadata.nodes_per_level),
            "nodes_per_level": list(metadata.nodes_per_level),
            "file_bytes": file_bytes,
            **facts,
        }
        sys.stdout.write(json.dumps(summary) + "\n")
