"""A part of the keys of a token stream: which ones, and their records.

Parts are ranges of the first token, so they need nothing from each other and their records follow one another. A token
that is too frequent for one part is divided by its second token, and so on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from speculant_graph import _core
from speculant_graph.graph.build.emit import Emitter
from speculant_graph.graph.build.keys import KeyLayout
from speculant_graph.graph.container import write_all
from speculant_graph.graph.layout import UInt32Array, UInt64Array


@dataclass(frozen=True, slots=True)
class Partition:
    """The keys that begin with ``prefix`` and go on with a value of ``low`` to ``high - 1``."""

    prefix: tuple[int, ...]
    """Values, token ids plus 1."""
    low: int
    """Lowest next value; 0 is the end of a document."""
    high: int
    """All next values are below it."""
    num_keys: int
    """Positions of the stream that have such a key."""

    def is_single(self, length: int) -> bool:
        """Return whether all its keys are equal."""
        return self.high - self.low == 1 and (self.low == 0 or len(self.prefix) + 1 == length)

    def num_sorted(self, length: int) -> int:
        """Return how many keys must be gathered and sorted: none if all are equal."""
        return 0 if self.is_single(length) else self.num_keys


def plan_partitions(
    token_ids: UInt32Array, vocabulary_size: int, layout: KeyLayout, max_keys: int, prefix: tuple[int, ...] = ()
) -> Iterator[Partition]:
    """Yield the parts of a stream in the order of their keys, each of at most ``max_keys`` unless they are equal."""
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


@dataclass(frozen=True, slots=True)
class PartitionRecords:
    """The records of a part on disk, numbered from its own beginning."""

    partition: Partition
    """Which part."""
    num_nodes: tuple[int, ...]
    """Records of every level."""
    totals: tuple[int, ...]
    """Sum of counts of every level."""
    files: tuple[Path, ...]
    """One file per level of 16-byte records."""
    task_cpu_s: float = 0.0
    """CPU seconds that another process took for it."""


class KeyBuffers:
    """Space for the keys of one part at a time, kept from part to part."""

    def __init__(self, layout: KeyLayout, max_keys: int) -> None:
        """Reserve space; it takes memory as far as it is used."""
        self.keys: UInt64Array = np.empty((max_keys, layout.num_words), np.uint64)
        self.spare: UInt64Array = np.empty((max_keys, layout.num_words), np.uint64)


def count_partition(
    token_ids: UInt32Array, partition: Partition, layout: KeyLayout, stem: Path, buffers: KeyBuffers
) -> PartitionRecords:
    """Count one part: gather its keys, sort them, write their records.

    Args:
        token_ids: the whole stream.
        partition: the part.
        layout: how keys are packed.
        stem: the files are named ``stem.1``, ``stem.2``, ...
        buffers: space for its keys.
    """
    emitter = Emitter(layout)
    files = tuple(stem.with_name(f"{stem.name}.{length}") for length in range(1, layout.length + 1))
    if partition.is_single(layout.length):
        ngram = tuple(value - 1 for value in (*partition.prefix, partition.low) if value)
        keys = np.array([layout.pack(ngram)], np.uint64)
        blocks = emitter.emit(keys, np.array([partition.num_keys], np.int64))
    else:
        prefix = np.array(partition.prefix, np.uint64)
        low, high, length, bits = partition.low, partition.high, layout.length, layout.bits
        num_keys = _core.gather_keys(token_ids, prefix, low, high, length, bits, buffers.keys)
        keys = buffers.keys[:num_keys]
        _core.sort_keys(keys, buffers.spare[:num_keys], prefix.size, low, high, length, bits)
        blocks = emitter.emit(keys)
    streams = [file.open("wb", buffering=0) for file in files]
    try:
        for block in blocks:
            write_all(streams[block.length - 1], block.records)
    finally:
        for stream in streams:
            stream.close()
    return PartitionRecords(partition, emitter.num_nodes, emitter.totals, files)
