"""Exports a graph as a lookup cache of llama.cpp, so that an unmodified ``llama-server`` drafts from it.

llama.cpp finds the longest known context and drafts its most frequent successor, if this successor is frequent enough.
llama.cpp's thresholds are fixed and accept short contexts with two occurrences, so most drafts from a whole graph would
be wrong. Because llama.cpp's thresholds are fixed, the export writes a context only if its best successor is likely
enough. Of a context's successors, the export writes only the best one. The export writes only the longest contexts,
because drafts from shorter contexts cost more than they gain (docs/engines.md).

The exported file has the format that ``common_ngram_cache_load`` in llama.cpp's ``common/ngram-cache.cpp`` reads. The
exported file has no header. Each context has one record of little-endian int32 values:

.. code-block:: text

    4    token ids of the context, padded with -1
    1    s, the number of successors
    2 s  the successors, each with its count
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from speculant_graph.errors import ConfigError
from speculant_graph.files import replacing
from speculant_graph.graph.layout import CHILD, CUMULATIVE, TOKEN, TOKEN_MASK, Int64Array
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.graph.store import damaged

LONGEST = 4
"""Length of the longest context that llama.cpp looks up, in tokens."""
LARGEST_COUNT = 20_000_000
"""Cap on exported counts, because llama.cpp multiplies counts by percentages in 32 bits."""

ALWAYS_ENOUGH = 4
"""Smallest exported count, to which lower counts are raised; it passes llama.cpp's thresholds for contexts of any
length."""

_WORD = np.dtype("<i4")
_RECORD_WORDS = LONGEST + 3
_CONTEXTS_AT_A_TIME = 1 << 16


def export_llama_lookup(graph: NgramGraph, path: str | Path, *, min_count: int = 1, min_share: float = 0.6) -> int:
    """Write a graph as a lookup cache of llama.cpp.

    The exported file is for ``llama-server --spec-type ngram-cache --lookup-cache-dynamic FILE``. The model must have
    the graph's tokenizer, but nothing checks this, because the cache contains only token ids. The export needs about 50
    MB of memory, and more if contexts have many successors.

    Args:
        graph: the graph; contexts of 4 tokens are written, or the longest contexts of a graph whose order is below 4.
        path: the file; an older file stays intact until the new one is complete.
        min_count: minimum number of occurrences of a context in the corpus.
        min_share: minimum share of the most frequent successor among all successors of a context.

    Returns:
        Number of contexts written to the file.

    Raises:
        ConfigError: ``min_count`` is below 1, or ``min_share`` is outside the range from 0 to 1.
        GraphFileError: the file can't be written, or the graph is damaged.
    """
    if min_count < 1:
        raise ConfigError(f"{{field}} = {min_count} is below 1", fix="take 1 to keep every context", field="min_count")
    if not 0.0 <= min_share <= 1.0:
        raise ConfigError(f"{{field}} = {min_share} is not a share", fix="take a number from 0 to 1", field="min_share")
    num_contexts, length = 0, min(LONGEST, graph.max_order)

    def check(written: Path) -> None:
        words = np.memmap(written, _WORD, "r") if num_contexts else np.empty(0, _WORD)
        if words.size != num_contexts * _RECORD_WORDS or np.any(words[LONGEST::_RECORD_WORDS] != 1):
            raise ValueError("it does not hold the records that were written")

    with replacing(Path(path), check) as temporary, temporary.open("wb") as file:
        for first, bounds in _portions(graph, length):
            records = _records(graph, length, first, bounds, min_count, min_share)
            file.write(records.data)
            num_contexts += len(records)
    return num_contexts


def _portions(graph: NgramGraph, length: int) -> Iterator[tuple[int, Int64Array]]:
    """Yield all contexts of one length, in runs of consecutive contexts.

    A run consists of the index of its first context, and the indices at which each context's successors start. The
    start indices have shape ``[contexts + 1]``; the last entry is the end of the last context's successors.
    """
    level = graph.trie.level(length)
    num_contexts, num_successors = graph.trie.nodes_per_level[length - 1 : length + 1]
    for first in range(0, num_contexts, _CONTEXTS_AT_A_TIME):
        bounds = level[first : min(first + _CONTEXTS_AT_A_TIME, num_contexts) + 1, CHILD].astype(np.int64)
        if bounds[-1] > num_successors or np.any(np.diff(bounds) < 0):
            raise damaged("the graph", f"successors of contexts of {length} tokens are out of order")
        yield first, bounds


def _records(
    graph: NgramGraph, length: int, first: int, bounds: Int64Array, min_count: int, min_share: float
) -> NDArray[np.int32]:
    """Return the file records of a run's exported contexts, int32 ``[kept, 7]``.

    Args:
        graph: the graph.
        length: number of tokens in a context.
        first: index of the first context.
        bounds: indices at which the contexts' successors start, shape ``[contexts + 1]``.
        min_count: see :func:`export_llama_lookup`.
        min_share: see :func:`export_llama_lookup`.
    """
    num_contexts = bounds.size - 1
    below = graph.trie.level(length + 1)[bounds[0] : bounds[-1] + 1]
    counts = np.diff(graph.trie.level(length)[first : first + num_contexts + 1, CUMULATIVE])
    has_successors = np.diff(bounds) > 0
    starts = (bounds[:-1] - bounds[0])[has_successors]
    if not starts.size:
        return np.empty((0, _RECORD_WORDS), _WORD)
    of_successors = np.diff(below[:, CUMULATIVE])
    best, totals = np.maximum.reduceat(of_successors, starts), np.add.reduceat(of_successors, starts)
    kept = (counts[has_successors] >= min_count) & (best >= min_share * totals)
    # Among equally frequent successors, take the first.
    owners = np.repeat(np.arange(starts.size), np.diff(np.append(starts, of_successors.size)))
    candidates = np.flatnonzero(of_successors == best[owners])
    indices = candidates[np.searchsorted(owners[candidates], np.flatnonzero(kept))]
    records = np.full((indices.size, _RECORD_WORDS), -1, _WORD)
    records[:, :length] = graph.ngrams(length, first, first + num_contexts)[has_successors][kept]
    records[:, LONGEST] = 1
    records[:, LONGEST + 1] = below[indices, TOKEN] & TOKEN_MASK
    records[:, LONGEST + 2] = np.clip(best[kept], ALWAYS_ENOUGH, LARGEST_COUNT)
    return records
