"""Counted parts to a graph file: the records of all parts, one after another, renumbered and linked."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from speculant_graph.errors import GraphError
from speculant_graph.graph.build.finish import finish_trie
from speculant_graph.graph.build.partition import PartitionRecords
from speculant_graph.graph.build.report import Stopwatch
from speculant_graph.graph.container import write_all, writing
from speculant_graph.graph.layout import CHILD, CUMULATIVE, INNER_WORDS, LINK, MAX_NODES, TOKEN, UInt32Array
from speculant_graph.graph.metadata import GraphMetadata
from speculant_graph.graph.store import NewGraphFile, new_graph_file

_RECORDS_AT_A_TIME = 1 << 17


def assemble_graph(
    path: Path,
    folder: Path,
    parts: Sequence[PartitionRecords],
    metadata: GraphMetadata,
    jobs: int,
    watch: Stopwatch,
    on_level: Callable[[int, int], None],
) -> None:
    """Write the graph of all parts; their files are removed on the way.

    Args:
        path: the graph file.
        folder: where it is written, on the same file system.
        parts: all parts in the order of their keys.
        metadata: what is known of the graph; sizes are filled in.
        jobs: threads.
        watch: measures it.
        on_level: called with (levels done, all levels) after each step, copying and linking a level being one each.

    Raises:
        GraphError: a level has more n-grams than fit.
        GraphFileError: the file can't be written.
    """
    shared = [0, *(_shared_levels(before, after) for before, after in itertools.pairwise(parts))]
    num_levels = metadata.max_order + 1
    sizes = tuple(
        sum(part.num_nodes[depth] - (depth < skipped) for part, skipped in zip(parts, shared, strict=True))
        for depth in range(num_levels)
    )
    if max(sizes) > MAX_NODES:
        raise GraphError(f"a level has {max(sizes)} n-grams and a graph holds {MAX_NODES}; split the corpus")
    metadata = replace(metadata, nodes_per_level=sizes)
    with new_graph_file(path, folder, metadata) as file:
        with watch.measuring("count"):
            for depth in range(num_levels):
                _copy_level(file, parts, shared, depth)
                on_level(depth + 1, 2 * num_levels)
            trie = file.map()
            contexts = finish_trie(trie, jobs, lambda done: on_level(num_levels + done, 2 * num_levels))
        with watch.measuring("save"):
            file.finish(contexts, watch.build_seconds, jobs)
        on_level(2 * num_levels, 2 * num_levels)


def _shared_levels(before: PartitionRecords, after: PartitionRecords) -> int:
    """Return how many leading tokens all keys of two neighbours share, whose records both have."""
    first, second = before.partition.prefix, after.partition.prefix
    shared = 0
    while shared < min(len(first), len(second)) and first[shared] == second[shared]:
        shared += 1
    return shared


def _copy_level(file: NewGraphFile, parts: Sequence[PartitionRecords], shared: Sequence[int], depth: int) -> None:
    num_levels = len(parts[0].num_nodes)
    is_leaf = depth + 1 == num_levels
    total, child = 0, 0
    output = file.file
    with writing(file.path):
        output.seek(file.level_offsets[depth])
        for part, skipped in zip(parts, shared, strict=True):
            # A record that the part before has too is left out; what follows it is numbered on.
            is_skipped = depth < skipped
            child -= depth + 1 < skipped
            with part.files[depth].open("rb", buffering=0) as source:
                source.seek(4 * INNER_WORDS * is_skipped)
                while (words := np.fromfile(source, np.uint32, INNER_WORDS * _RECORDS_AT_A_TIME)).size:
                    records = words.reshape(-1, INNER_WORDS)
                    records[:, CUMULATIVE] += np.uint32(total)
                    records[:, CHILD] += np.uint32(child)
                    write_all(output, _leaves(records) if is_leaf else records)
            part.files[depth].unlink()
            total += part.totals[depth]
            child += 0 if is_leaf else part.num_nodes[depth + 1]
        closing = np.array([[0, total, child, 0]], np.uint32)
        write_all(output, _leaves(closing) if is_leaf else closing)


def _leaves(records: UInt32Array) -> UInt32Array:
    return np.ascontiguousarray(records[:, (TOKEN, CUMULATIVE, LINK)])
