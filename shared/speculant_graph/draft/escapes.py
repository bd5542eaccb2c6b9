"""Kinds of contexts, and the share of probability that each kind leaves to shorter contexts."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from speculant_graph.draft.sources import CORPUS, RECYCLED, Entries
from speculant_graph.graph.compiled import Integer, inlined

Float64Array = NDArray[np.float64]

NUM_LENGTHS, NUM_OCCURRENCES, NUM_DISTINCT = 11, 6, 3
"""Classes of lengths, of how often a context occurred, and of how many tokens followed it."""
SMALLEST_SHARE = 0.03
"""Shorter contexts are left out once less than this share is left for them."""


@inlined
def length_class(source: Integer, length: Integer) -> Any:
    """Return the class of a context's length; orders of a graph are classes of their own."""
    if source == CORPUS or length <= 5:
        return min(length, NUM_LENGTHS - 1)
    if length <= 7:
        return np.int64(6)
    if length <= 11:
        return np.int64(7)
    return np.int64(8) if length <= 19 else np.int64(9)


@inlined
def kind_of(entries: Entries, index: Integer) -> Any:
    """Return the row of an entry in the table of escapes."""
    source, total, distinct = (
        entries.source[index],
        entries.total[index],
        entries.distinct[index],
    )
    if source == RECYCLED:
        total = entries.node[index]  # rows; what their tokens count is no number of occurrences
    occurrences: Any
    if total <= 2:
        occurrences = total - 1
    elif total <= 4:
        occurrences = np.int64(2)
    elif total <= 12:
        occurrences = np.int64(3)
    else:
        occurrences = np.int64(4) if total <= 50 else np.int64(5)
    variety = np.int64(0) if distinct == 1 else (np.int64(1) if distinct <= 3 else np.int64(2))
    length = length_class(source, entries.length[index])
    return ((source * NUM_LENGTHS + length) * NUM_OCCURRENCES + occurrences) * NUM_DISTINCT + variety


@inlined
def escape_of(escapes: Float64Array, kind: Integer) -> Any:
    """Return the share that a kind leaves to shorter contexts, strictly between 0 and 1."""
    return (escapes[kind, 1] + 0.5) / (escapes[kind, 0] + 1.0)
