"""Assembles a graph file from counted parts: concatenates, renumbers and links their records."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np

from speculant_graph import _core
from speculant_graph.errors import GraphError
from speculant_graph.files import write_all, writing
from speculant_graph.graph.build.build_report import BuildReport
from speculant_graph.graph.build.keys import PartRecords
from speculant_graph.graph.layout import CHILD, CUMULATIVE, INNER_WORDS, LINK, MAX_NODES, TOKEN, Trie, UInt32Array
from speculant_graph.graph.metadata import GraphMetadata
from speculant_graph.graph.store import NewGraphFile, new_graph_file

_RECORDS_AT_A_TIME = 1 << 17
_SLICE = 1 << 20


def assemble_graph(
    path: Path,
    folder: Path,
    parts: Sequence[PartRecords],
    metadata: GraphMetadata,
    jobs: int,
    watch: BuildReport,
    on_level: Callable[[int, int], None],
    model: UInt32Array | None = None,
) -> None:
    """Write the graph of all parts, and remove the parts' files.

    Args:
        path: the graph file.
        folder: folder for the unfinished file, on the same file system.
        parts: all parts in the order of their keys.
        metadata: the graph's metadata; this function fills in the sizes.
        jobs: number of threads.
        watch: the report that records time and memory.
        on_level: called with (steps done, all steps); copying a level is one step, and linking it is another.
        model: the neural model as 32-bit words, if there is one.

    Raises:
        GraphError: a level has too many n-grams.
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
    metadata = replace(metadata, nodes_per_level=sizes, num_model_words=0 if model is None else model.size)
    with new_graph_file(path, folder, metadata) as file:
        with watch.measuring("count"):
            for depth in range(num_levels):
                _copy_level(file, parts, shared, depth)
                on_level(depth + 1, 2 * num_levels)
            trie = file.map()
            if model is not None:
                assert trie.model is not None
                trie.model[:] = model
            contexts = _finish_trie(trie, jobs, lambda done: on_level(num_levels + done, 2 * num_levels))
        with watch.measuring("save"):
            file.finish(contexts, watch.build_seconds, jobs)
        on_level(2 * num_levels, 2 * num_levels)


def _shared_levels(before: PartRecords, after: PartRecords) -> int:
    """Return how many leading tokens all keys of two adjacent parts share; both parts have records of these tokens."""
    first, second = before.prefix, after.prefix
    shared = 0
    while shared < min(len(first), len(second)) and first[shared] == second[shared]:
        shared += 1
    return shared


def _copy_level(file: NewGraphFile, parts: Sequence[PartRecords], shared: Sequence[int], depth: int) -> None:
    num_levels = len(parts[0].num_nodes)
    is_leaf = depth + 1 == num_levels
    total, child = 0, 0
    output = file.file
    with writing(file.path):
        output.seek(file.level_offsets[depth])
        for part, skipped in zip(parts, shared, strict=True):
            # Skip a record that the previous part also has, and continue its numbering.
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


def _finish_trie(trie: Trie, jobs: int, on_level: Callable[[int], None]) -> tuple[int, ...]:
    """Fill the columns ``best`` and ``link`` and the table ``first`` of a trie; all other columns must be complete.

    Returns:
        Number of contexts that have a successor, for each order from 1 to N.
    """
    levels = [trie.level(length) for length in range(1, trie.max_order + 2)]
    first = trie.first
    _core.fill_unigram_index(levels[0], first)
    contexts = []
    with ThreadPoolExecutor(jobs) as threads:
        for length, (level, next_level) in enumerate(itertools.pairwise(levels), start=1):
            slices = [(start, min(start + _SLICE, len(level) - 1)) for start in range(0, len(level) - 1, _SLICE)]
            if length == 1:
                link = lambda part: _core.link_pairs(level, next_level, first, *part)  # noqa: B023, E731
            else:
                before = levels[length - 2]
                link = lambda part: _core.link_children(before, level, next_level, *part)  # noqa: B023, E731
            for _ in threads.map(link, slices):
                pass
            contexts.append(sum(threads.map(lambda part: _core.mark_argmax(level, next_level, *part), slices)))  # noqa: B023
            on_level(length)
    return tuple(contexts)
