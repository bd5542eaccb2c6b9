"""Kernels on the masses of a row, which probabilities are proportional to: their temperature, and the largest."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from speculant_graph.graph.compiled import Integer, compiled, inlined
from speculant_graph.graph.layout import Int64Array

Float64Array = NDArray[np.float64]


@compiled
def temper(masses: Float64Array, temperature: float) -> float:
    """Raise masses to the power of 1 / temperature, the largest one being 1; return their sum."""
    largest, total = 0.0, 0.0
    for index in range(masses.size):
        largest = max(largest, masses[index])
    if largest > 0.0:  # always, unless the file is damaged
        for index in range(masses.size):
            masses[index] = (masses[index] / largest) ** (1.0 / temperature)
            total += masses[index]
    return total


@inlined
def _is_less(masses: Float64Array, first: Integer, second: Integer) -> Any:
    return masses[first] < masses[second] or (masses[first] == masses[second] and first > second)


@inlined
def _sift(masses: Float64Array, heap: Int64Array, place: Integer) -> None:
    """Let the index at a place of a heap sink to where it belongs."""
    index = heap[place]
    child = 2 * place + 1
    while child < heap.size:
        if child + 1 < heap.size and _is_less(masses, heap[child + 1], heap[child]):
            child += 1
        if not _is_less(masses, heap[child], index):
            break
        heap[place] = heap[child]
        place, child = child, 2 * child + 1
    heap[place] = index


@compiled
def last_kept(masses: Float64Array, num_kept: int) -> Any:
    """Return the least of the ``num_kept`` largest masses, as an index; of equals the lower index is the larger."""
    heap = np.arange(num_kept)
    for place in range(num_kept // 2 - 1, -1, -1):
        _sift(masses, heap, place)
    for index in range(num_kept, masses.size):
        if masses[index] > masses[heap[0]]:
            heap[0] = index
            _sift(masses, heap, 0)
    return heap[0]
