"""Counts the n-grams of a token stream on disk into a graph file, within a memory limit.

The keys (packed n-grams) are divided into ranges of their first token. The ranges are therefore independent parts of
the count, and their records can be concatenated. If a first token is too frequent for one part, the keys that begin
with it are divided by their second token, and so on.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from speculant_graph import _core
from speculant_graph.errors import CorpusError, GraphError
from speculant_graph.files import writing
from speculant_graph.graph.build.assemble import assemble_graph
from speculant_graph.graph.build.build_report import BuildReport, Phase
from speculant_graph.graph.build.keys import KeyLayout, PartRecords, emit_records, emitter_bytes
from speculant_graph.graph.layout import MAX_NODES, UInt32Array, UInt64Array, require_vocabulary
from speculant_graph.graph.metadata import GraphMetadata
from speculant_graph.machine import anonymous_bytes

CountProgress = Callable[[Phase, int, int], None]
"""Progress callback that gets ("count", done, total), in positions of the token stream. After counting, this callback
gets ("save", done, total), in steps of writing and linking levels."""

CountParts = Callable[["CountJob"], Iterator[tuple[int, PartRecords]]]
"""Function that counts a stream, and yields each part's number of keys and its records, in the order of keys."""

_PARTS_PER_JOB = 3
_MIN_KEYS = 1 << 16
_CHECKED_TOKENS = 1 << 20
_MARGIN_BYTES = 64_000_000  # for the interpreter and its threads


@dataclass(frozen=True, slots=True)
class CountJob:
    """A token stream to count, with the layout and limits of the count."""

    token_ids: UInt32Array
    """The stream, shape ``[num_tokens]``, with document separators if there are boundaries."""
    vocabulary_size: int
    """Exclusive upper bound of the token ids."""
    layout: KeyLayout
    """Layout of keys."""
    folder: Path
    """Folder for the files that contain the records."""
    memory: int
    """Limit of the anonymous memory of each process that counts, in bytes."""
    num_threads: int
    """Maximum number of threads of this process."""


@dataclass(frozen=True, slots=True)
class Partition:
    """The keys that begin with ``prefix`` and continue with a value from ``low`` to ``high - 1``."""

    prefix: tuple[int, ...]
    """Values with which all keys begin; a value is a token id plus 1."""
    low: int
    """Lowest value after the prefix; 0 means the end of a document."""
    high: int
    """Upper bound of the value after the prefix, exclusive."""
    num_keys: int
    """Number of stream positions whose keys are in this part."""

    def is_single(self, length: int) -> bool:
        """Return whether all keys of this part are equal."""
        return self.high - self.low == 1 and (self.low == 0 or len(self.prefix) + 1 == length)

    def num_sorted(self, length: int) -> int:
        """Return the number of keys to gather and sort; 0 if all keys are equal."""
        return 0 if self.is_single(length) else self.num_keys


def plan_partitions(
    token_ids: UInt32Array, vocabulary_size: int, layout: KeyLayout, max_keys: int, prefix: tuple[int, ...] = ()
) -> Iterator[Partition]:
    """Yield the parts of a stream in key order, each with at most ``max_keys`` keys unless all its keys are equal."""
    counts = np.zeros(vocabulary_size + 1, np.int64)
    _core.count_values(token_ids, np.array(prefix, np.uint64), counts)
    low, num_keys = 0, 0
    for value in np.flatnonzero(counts).tolist():
        count = int(counts[value])
        if num_keys and num_keys + count > max_keys:
            yield Partition(prefix, low, value, num_keys)
            low, num_keys = value, 0
        if count > max_keys and value and len(prefix) + 1 < layout.length:
            yield from plan_partitions(token_ids, vocabulary_size, layout, max_keys, (*prefix, value))
            low, num_keys = value + 1, 0
        elif count > max_keys:
            yield Partition(prefix, value, value + 1, count)
            low, num_keys = value + 1, 0
        else:
            low = low if num_keys else value
            num_keys += count
    if num_keys:
        yield Partition(prefix, low, vocabulary_size + 1, num_keys)


def map_tokens(stream: Path) -> UInt32Array:
    """Map a token stream into memory, shape ``[num_tokens]``, read-only."""
    if not stream.stat().st_size:
        return np.empty(0, np.uint32)
    return np.asarray(np.memmap(stream, "<u4", "r"))


def check_tokens(token_ids: UInt32Array, vocabulary_size: int) -> None:
    """Raise an error if a stream can't be counted; see :func:`count_tokens`."""
    require_vocabulary(vocabulary_size)
    if not token_ids.size:
        raise CorpusError("the corpus has no tokens; name files that hold text")
    if token_ids.size > MAX_NODES:
        raise GraphError(f"the corpus has {token_ids.size} tokens and a graph holds {MAX_NODES}; split the corpus")
    # Adding 1 turns a separator (all bits set) into 0; slices limit the memory of the copies.
    slices = (token_ids[start : start + _CHECKED_TOKENS] for start in range(0, token_ids.size, _CHECKED_TOKENS))
    highest = max(int((part + np.uint32(1)).max()) for part in slices)
    if highest > vocabulary_size:
        raise GraphError(f"token id {highest - 1} is outside a vocabulary of {vocabulary_size}; check the tokenizer")


def fit_into(free: int, num_tokens: int, layout: KeyLayout, jobs: int) -> tuple[int, int]:
    """Return how many concurrent jobs fit into memory, and the maximum number of keys in a part.

    Args:
        free: available memory in bytes.
        num_tokens: number of stream positions; it limits the size of parts, so that all jobs stay busy.
        layout: layout of keys.
        jobs: maximum number of jobs.
    """
    free -= _MARGIN_BYTES
    key_bytes = 2 * layout.bytes
    # Sorting needs, for every first token, the number of keys and the start of the bucket.
    job_bytes = emitter_bytes(layout) + (16 << layout.bits)
    jobs = max(1, min(jobs, free // (job_bytes + _MIN_KEYS * key_bytes)))
    fitting = (free // jobs - job_bytes) // key_bytes
    return jobs, max(_MIN_KEYS, min(fitting, num_tokens // (_PARTS_PER_JOB * jobs)))


def count_partitions(
    token_ids: UInt32Array, parts: Sequence[Partition], layout: KeyLayout, folder: Path, jobs: int
) -> Iterator[PartRecords]:
    """Yield the records of a token stream's parts, in order; ``folder`` contains their files."""
    largest = max(part.num_sorted(layout.length) for part in parts)
    # Each job has two arrays of keys and reuses them; only their used pages take memory.
    free_buffers: queue.SimpleQueue[tuple[UInt64Array, UInt64Array]] = queue.SimpleQueue()
    for _ in range(jobs):
        free_buffers.put((space_for_keys(largest, layout), space_for_keys(largest, layout)))

    def count(index: int) -> PartRecords:
        buffers = free_buffers.get()
        try:
            return count_partition([(token_ids, 0)], parts[index], layout, folder / f"part-{index}", *buffers)
        finally:
            free_buffers.put(buffers)

    with ThreadPoolExecutor(jobs) as threads:
        futures = [threads.submit(count, index) for index in range(len(parts))]
        try:
            for future in futures:
                yield future.result()
        finally:
            for future in futures:
                future.cancel()


def blocks_of(token_ids: UInt32Array, layout: KeyLayout, size: int) -> Iterator[tuple[UInt32Array, int]]:
    """Divide a stream into blocks of ``size`` positions; see :func:`count_partition`."""
    for start in range(0, token_ids.size, size):
        block = token_ids[start : start + size + layout.length]
        yield block, max(0, block.size - size)


def count_partition(
    blocks: Iterable[tuple[UInt32Array, int]],
    part: Partition,
    layout: KeyLayout,
    stem: Path,
    keys: UInt64Array,
    spare: UInt64Array,
) -> PartRecords:
    """Gather the keys of a part, sort them, and write their records.

    Args:
        blocks: the stream in blocks, each with the number of its last tokens that the next block repeats. These
            overlapping tokens complete the keys that begin before them.
        part: the part.
        layout: layout of keys.
        stem: path of the records' files, without the suffix for the level.
        keys: space for the part's keys and, with several blocks, for ``2 * layout.length`` more keys.
        spare: a second array of the same size, for sorting.
    """
    if part.is_single(layout.length):
        ngram = tuple(value - 1 for value in (*part.prefix, part.low) if value)
        keys, weights = np.array([layout.pack(ngram)], np.uint64), np.array([part.num_keys], np.int64)
        return emit_records([(keys, weights)], layout, stem, part.prefix)
    prefix = np.array(part.prefix, np.uint64)
    low, high, length, bits = part.low, part.high, layout.length, layout.bits
    num_keys = 0
    for block, overlap in blocks:
        num_keys += _core.gather_keys(block, prefix, low, high, length, bits, keys[num_keys:])
        if overlap:  # the next block has the keys that begin in the overlap
            num_keys -= _core.gather_keys(block[-overlap:], prefix, low, high, length, bits, keys[num_keys:])
    keys = keys[:num_keys]
    _core.sort_keys(keys, spare[:num_keys], prefix.size, low, high, length, bits)
    return emit_records([(keys, None)], layout, stem, part.prefix)


def space_for_keys(num_keys: int, layout: KeyLayout) -> UInt64Array:
    """Return an array for keys; its pages take memory only when they are used."""
    return np.empty((num_keys, layout.num_words), np.uint64)


def count_parts(job: CountJob) -> Iterator[tuple[int, PartRecords]]:
    """Count a stream with the threads of this process; this function is a :data:`CountParts`."""
    jobs, max_keys = fit_into(job.memory - anonymous_bytes(), job.token_ids.size, job.layout, job.num_threads)
    parts = list(plan_partitions(job.token_ids, job.vocabulary_size, job.layout, max_keys))
    records = count_partitions(job.token_ids, parts, job.layout, job.folder, jobs)
    yield from zip((part.num_keys for part in parts), records, strict=True)


def count_tokens(
    stream: Path,
    output: Path,
    metadata: GraphMetadata,
    folder: Path,
    *,
    memory: int,
    jobs: int,
    watch: BuildReport | None = None,
    on_progress: CountProgress = lambda _phase, _done, _all: None,
    model: UInt32Array | None = None,
    count: CountParts = count_parts,
) -> None:
    """Count the n-grams of a token stream into a graph file.

    The keys at all positions of the stream are divided by first token into parts that fit into memory. The keys of each
    part are gathered, sorted and written as records. The graph file contains the records of all parts in order.

    Args:
        stream: file of little-endian 32-bit token ids, with document separators if there are boundaries.
        output: the graph file.
        metadata: the graph's metadata; this function fills in the sizes.
        folder: folder for records and the unfinished file, on the same file system as the output.
        memory: limit of this process's anonymous memory, in bytes.
        jobs: number of threads.
        watch: the report that records time and memory.
        on_progress: called at every step.
        model: the neural model as 32-bit words, if there is one.
        count: function that counts the parts, in this process or on other machines.

    Raises:
        CorpusError: the stream is empty.
        GraphError: the stream is too long or contains an id outside the vocabulary.
        GraphFileError: the disk is full, or a file can't be written.
    """
    watch = watch or BuildReport()
    with watch.measuring("count"), writing(output):
        token_ids = map_tokens(stream)
        vocabulary_size = metadata.tokenizer.vocabulary_size
        check_tokens(token_ids, vocabulary_size)
        layout = KeyLayout.of(vocabulary_size, metadata.max_order)
        records = []
        done = 0
        for num_keys, part in count(CountJob(token_ids, vocabulary_size, layout, folder, memory, jobs)):
            records.append(part)
            done += num_keys
            on_progress("count", done, token_ids.size)
    assemble_graph(output, folder, records, metadata, jobs, watch, partial(on_progress, "save"), model)
