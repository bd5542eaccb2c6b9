"""A token stream on disk to a graph file, within a given memory."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np

from speculant_graph.errors import CorpusError, GraphError
from speculant_graph.graph.build.assemble import assemble_graph
from speculant_graph.graph.build.emit import emitter_bytes
from speculant_graph.graph.build.keys import KeyLayout
from speculant_graph.graph.build.partition import (
    KeyBuffers,
    Partition,
    PartitionRecords,
    count_partition,
    plan_partitions,
)
from speculant_graph.graph.build.report import Stopwatch
from speculant_graph.graph.container import writing
from speculant_graph.graph.layout import MAX_NODES, UInt32Array, require_vocabulary
from speculant_graph.graph.metadata import GraphMetadata
from speculant_graph.machine import anonymous_bytes

CountProgress = Callable[[int, int], None]
"""Called with (done, all) in positions of the token stream."""

_PARTS_PER_JOB = 3
_MIN_KEYS = 1 << 16
_CHECKED_TOKENS = 1 << 20
_MARGIN_BYTES = 64_000_000  # what the interpreter and its threads take meanwhile


def count_tokens(
    stream: Path,
    output: Path,
    metadata: GraphMetadata,
    folder: Path,
    *,
    memory: int,
    jobs: int,
    engine: str = "local",
    watch: Stopwatch | None = None,
    on_count: CountProgress | None = None,
    on_save: CountProgress | None = None,
) -> None:
    """Count the n-grams of a token stream into a graph file.

    The positions of the stream are divided by their first tokens into parts that fit into memory. Each part is
    gathered, sorted and written as records; the records of all parts follow one another in the file.

    Args:
        stream: file of little-endian 32-bit token ids, document separators among them if there are boundaries.
        output: the graph file.
        metadata: what the file states of itself; sizes are filled in.
        folder: where records and the unfinished file are kept, on the same file system as the output.
        memory: most anonymous bytes of this process.
        jobs: threads or tasks.
        engine: ``local`` or ``ray``.
        watch: measures it.
        on_count: called with the positions that are counted.
        on_save: called with the steps of writing and linking the levels.

    Raises:
        CorpusError: the stream is empty.
        GraphError: it is too long or holds an id outside the vocabulary.
        GraphFileError: the disk is full, or a file can't be written.
    """
    watch = watch or Stopwatch()
    with watch.measuring("count"), writing(output):
        token_ids = map_tokens(stream)
        vocabulary_size = metadata.tokenizer.vocabulary_size
        check_tokens(token_ids, vocabulary_size)
        layout = KeyLayout.of(vocabulary_size, metadata.max_order)
        jobs, max_keys = fit_into(memory - anonymous_bytes(), token_ids.size, layout, jobs)
        parts = list(plan_partitions(token_ids, vocabulary_size, layout, max_keys))
        count = _count_locally
        if engine == "ray":
            from speculant_graph.graph.build.cluster import count_on_cluster

            count = count_on_cluster
        records = []
        done = 0
        for result in count(stream, parts, layout, folder, jobs):
            records.append(result)
            done += result.partition.num_keys
            watch.task_cpu_s += result.task_cpu_s
            if on_count is not None:
                on_count(done, token_ids.size)
    assemble_graph(output, folder, records, metadata, jobs, watch, on_save or _ignore)


def map_tokens(stream: Path) -> UInt32Array:
    """Map a token stream, shape ``[num_tokens]``, read-only."""
    if not stream.stat().st_size:
        return np.empty(0, np.uint32)
    return np.asarray(np.memmap(stream, "<u4", "r"))


def check_tokens(token_ids: UInt32Array, vocabulary_size: int) -> None:
    """Refuse a stream that can't be counted; see :func:`count_tokens`."""
    require_vocabulary(vocabulary_size)
    if not token_ids.size:
        raise CorpusError("the corpus has no tokens; name files that hold text")
    if token_ids.size > MAX_NODES:
        raise GraphError(f"the corpus has {token_ids.size} tokens and a graph holds {MAX_NODES}; split the corpus")
    # Plus 1, as a separator, all ones, becomes 0 then; in slices, as the sum is a copy.
    slices = (token_ids[start : start + _CHECKED_TOKENS] for start in range(0, token_ids.size, _CHECKED_TOKENS))
    highest = max(int((part + np.uint32(1)).max()) for part in slices)
    if highest > vocabulary_size:
        raise GraphError(f"token id {highest - 1} is outside a vocabulary of {vocabulary_size}; check the tokenizer")


def fit_into(free: int, num_tokens: int, layout: KeyLayout, jobs: int) -> tuple[int, int]:
    """Return how many jobs run at once and the most keys of a part.

    Args:
        free: bytes that may be taken.
        num_tokens: positions of the stream; parts are no larger than keeps all jobs busy.
        layout: how keys are packed.
        jobs: most that are wanted.
    """
    free -= _MARGIN_BYTES
    key_bytes = 2 * layout.bytes
    # Sorting counts the keys of every first token, and where their buckets begin.
    job_bytes = emitter_bytes(layout) + (16 << layout.bits)
    jobs = max(1, min(jobs, free // (job_bytes + _MIN_KEYS * key_bytes)))
    fitting = (free // jobs - job_bytes) // key_bytes
    return jobs, max(_MIN_KEYS, min(fitting, num_tokens // (_PARTS_PER_JOB * jobs)))


def _count_locally(
    stream: Path, parts: Sequence[Partition], layout: KeyLayout, folder: Path, jobs: int
) -> Iterable[PartitionRecords]:
    token_ids = map_tokens(stream)
    largest = max(part.num_sorted(layout.length) for part in parts)
    free_buffers: queue.SimpleQueue[KeyBuffers] = queue.SimpleQueue()
    for _ in range(jobs):
        free_buffers.put(KeyBuffers(layout, largest))

    def count(index: int) -> PartitionRecords:
        buffers = free_buffers.get()
        try:
            return count_partition(token_ids, parts[index], layout, folder / f"part-{index}", buffers)
        finally:
            free_buffers.put(buffers)

    with ThreadPoolExecutor(jobs) as threads:
        futures: list[Future[PartitionRecords]] = [threads.submit(count, index) for index in range(len(parts))]
        try:
            for future in futures:
                yield future.result()
        finally:
            for future in futures:
                future.cancel()


def _ignore(_done: int, _all: int) -> None:
    pass
