"""What drafts are made from, as kernels see it: the sources of a sequence, and what they say about a context."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from speculant_graph.draft.history import HistoryArrays, Int32Array
from speculant_graph.graph.compiled import Integer, inlined
from speculant_graph.graph.layout import Int64Array, UInt32Array

SESSION, CORPUS, GAP, LEARNED, RECYCLED = range(5)
"""Numbers of the sources."""
NUM_SOURCES = 5

MAX_MATCHES = 64
"""Most places of a history that one chain contributes; the newest are taken."""
MAX_DISTINCT = 64
"""Most different successors of places in a history."""
TOP_SUCCESSORS = 16
"""Most successors of a graph's context that are looked at: the most frequent."""
LONG_ROW = 64
"""Contexts of a graph with more successors are remembered with their most frequent ones."""
MIN_GAP_MATCH = 2
"""Tokens that must match before a gap."""
MAX_ENTRIES = 128
_MAX_COUNTS = 8_192
ROW_SLOTS = 8_192
"""Contexts with many successors that are remembered; a power of two."""
ROW_WIDTH, ROW_DEPTH = 4, 4
"""Tokens kept of a row of the target, and rows kept of a context."""


class GraphArrays(NamedTuple):
    """What kernels see of a graph."""

    words: UInt32Array
    table: Int64Array
    row_keys: Int64Array
    """Which long row is remembered in a slot, -1 for none, shape ``[ROW_SLOTS]``."""
    row_tokens: Int32Array
    """Its most frequent successors, shape ``[ROW_SLOTS, TOP_SUCCESSORS]``."""
    row_counts: Int64Array
    """Their counts."""


class RecycledArrays(NamedTuple):
    """What kernels see of the target's rows."""

    keys: Int64Array
    """The context that a slot's rows follow, see :func:`row_key`; -1 for none, shape ``[slots]``, a power of two."""
    rows: Int32Array
    """The newest row first; in a row the most probable next token first, -1 for none, shape ``[slots, depth * width]``.
    """


class Sources(NamedTuple):
    """Everything that one sequence drafts from."""

    graph: GraphArrays
    session: HistoryArrays
    learned: HistoryArrays
    recycled: RecycledArrays
    enabled: Int64Array
    """1 for every source that may be used, shape ``[NUM_SOURCES]``."""


class Entries(NamedTuple):
    """Entries of one context, longest first; ``size[0]`` of them."""

    size: Int64Array
    source: Int64Array
    length: Int64Array
    """Tokens of the context (the longest match of the entry's places)."""
    total: Int64Array
    """How often it occurred."""
    distinct: Int64Array
    """How many different tokens followed it."""
    node: Int64Array
    """Corpus: the context's record."""
    start: Int64Array
    """First of its successors in ``tokens``; the entry's end is the next one's start, shape ``[MAX_ENTRIES + 1]``."""
    tokens: Int64Array
    counts: Int64Array
    places: Int64Array
    """Scratch: positions and match lengths of the session, then of what was learned, shape ``[4, 2 * MAX_MATCHES]``."""
    tally: Int64Array
    """Scratch: running successors and counts of the same, shape ``[4, MAX_DISTINCT]``."""


def make_entries() -> Entries:
    """Return room for the entries of one context."""

    def numbers(*shape: int) -> Int64Array:
        return np.zeros(shape, np.int64)

    return Entries(
        size=numbers(1),
        source=numbers(MAX_ENTRIES),
        length=numbers(MAX_ENTRIES),
        total=numbers(MAX_ENTRIES),
        distinct=numbers(MAX_ENTRIES),
        node=numbers(MAX_ENTRIES),
        start=numbers(MAX_ENTRIES + 1),
        tokens=numbers(_MAX_COUNTS),
        counts=numbers(_MAX_COUNTS),
        places=numbers(4, 2 * MAX_MATCHES),
        tally=numbers(4, MAX_DISTINCT),
    )


@inlined
def close_entry(
    entries: Entries, source: Integer, length: Integer, total: Integer, distinct: Integer, node: Integer, stop: Integer
) -> None:
    """Add an entry whose successors have been written, up to ``stop``."""
    index = entries.size[0]
    entries.source[index] = source
    entries.length[index] = length
    entries.total[index] = total
    entries.distinct[index] = distinct
    entries.node[index] = node
    entries.start[index + 1] = stop
    entries.size[0] = index + 1


@inlined
def row_key(before: Integer, last: Integer, length: Integer) -> Any:
    """Return what names a context of the last token, or of the last two."""
    return last if length == 1 else ((before + 1) << 24) | last


@inlined
def row_slot(key: Integer, num_slots: Integer) -> Any:
    """Return the slot of a context in a table of so many."""
    return ((key * np.int64(0x1E3779B97F4A7C15)) >> np.int64(40)) & (num_slots - 1)
