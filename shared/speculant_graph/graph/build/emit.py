"""Sorted keys to records on disk: one pass writes all levels at once.

How many tokens a key shares with the key before it determines which levels begin a new record.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from speculant_graph import _core
from speculant_graph.graph.build.keys import KeyLayout
from speculant_graph.graph.layout import INNER_WORDS, Int64Array, UInt64Array
from speculant_graph.graph.workspace import write_all

_RECORDS = 1 << 15
"""Records of a level that are written at a time; they stay in a core's cache until then."""


@dataclass(frozen=True, slots=True)
class PartRecords:
    """The records of a part of the keys on disk, numbered from its own beginning."""

    prefix: tuple[int, ...]
    """What all keys of the part begin with: token ids plus 1."""
    num_nodes: tuple[int, ...]
    """Records of every level."""
    totals: tuple[int, ...]
    """Sum of counts of every level."""
    files: tuple[Path, ...]
    """One file per level of 16-byte records; those of the last level have the child 0."""


def emitter_bytes(layout: KeyLayout) -> int:
    """Return the memory that emitting takes."""
    return layout.length * _RECORDS * INNER_WORDS * 4


def emit_records(
    keys: Iterable[tuple[UInt64Array, Int64Array | None]], layout: KeyLayout, stem: Path, prefix: tuple[int, ...] = ()
) -> PartRecords:
    """Write the records of sorted keys.

    Args:
        keys: ascending, in portions of shape ``[n, num_words]``, with how often each occurs, ``[n]``; None: once each.
        layout: how they are packed.
        stem: the files are named ``stem.1``, ``stem.2``, ...
        prefix: what all of them begin with.
    """
    emitter = _core.Emitter(layout.length, layout.bits, _RECORDS)
    files = tuple(stem.with_name(f"{stem.name}.{length}") for length in range(1, layout.length + 1))
    outputs = [file.open("wb", buffering=0) for file in files]
    try:
        for portion, weights in keys:
            row = 0
            while row < len(portion):
                row = emitter.emit(portion, weights, row)
                for output, records in zip(outputs, emitter.records, strict=True):
                    if len(records):
                        write_all(output, records)
    finally:
        for output in outputs:
            output.close()
    return PartRecords(prefix, tuple(emitter.num_nodes), tuple(emitter.totals), files)
