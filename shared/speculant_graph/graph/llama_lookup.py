"""A graph as the lookup cache of llama.cpp, from which an unmodified ``llama-server`` drafts.

The file has no head; it is what ``common_ngram_cache_load`` of llama.cpp's ``common/ngram-cache.cpp`` reads, one record
per context, all of them little-endian int32:

.. code-block:: text

    4    token ids of the context, -1 behind a shorter one
    1    s, how many tokens followed it
    2 s  the tokens with their counts
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from speculant_graph.errors import ConfigError
from speculant_graph.graph.container import damaged
from speculant_graph.graph.export import replacing
from speculant_graph.graph.layout import CHILD, CUMULATIVE, TOKEN, TOKEN_MASK, Int64Array, UInt32Array
from speculant_graph.graph.ngrams import NgramGraph

LONGEST = 4
"""Tokens of the longest context that llama.cpp looks up."""
LARGEST_TOTAL = 20_000_000
"""llama.cpp multiplies sums of counts by percentages in 32 bits; a context seen more often is written in proportion."""

_WORD = np.dtype("<i4")
_CONTEXTS_AT_A_TIME = 1 << 16
_SUCCESSORS_AT_A_TIME = 1 << 20


@dataclass(frozen=True, slots=True)
class LookupSize:
    """What a lookup cache holds."""

    contexts: int
    """Contexts of 1 to 4 tokens."""
    successors: int
    """Their successors, all together."""


def export_llama_lookup(graph: NgramGraph, path: str | Path, min_count: int = 2) -> LookupSize:
    """Write the graph's contexts of 1 to 4 tokens with all their successors as llama.cpp's lookup cache.

    The file is for ``llama-server --spec-type ngram-cache --lookup-cache-dynamic FILE``. As the cache knows token ids
    only, the model must have the graph's tokenizer; nothing compares them. Takes some 50 MB of memory at most, or
    more if a context has millions of successors.

    Args:
        graph: the graph; one of a lower order has shorter contexts only.
        path: the file; an older one stays intact until the new one is complete.
        min_count: contexts that occur less often in the corpus are left out. As a dynamic cache none that occurs once
            is ever drafted from, so 2 loses nothing.

    Raises:
        ConfigError: ``min_count`` is below 1.
        GraphFileError: the file can't be written, or the graph is damaged.
    """
    if min_count < 1:
        raise ConfigError(f"min_count = {min_count} is below 1; take 1 to keep every context")
    contexts = successors = 0
    with replacing(Path(path)) as temporary, temporary.open("wb") as file:
        for length in range(1, min(LONGEST, graph.max_order) + 1):
            for first, sizes in _portions(graph, length):
                words, kept = _records(graph, length, first, sizes, min_count)
                file.write(words.data)
                contexts += kept
                successors += (words.size - (LONGEST + 1) * kept) // 2
    return LookupSize(contexts, successors)


def _portions(graph: NgramGraph, length: int) -> Iterator[tuple[int, Int64Array]]:
    """Yield runs of contexts of one length: the number of the first, and where the successors of each begin.

    The latter has one number more than there are contexts, the end of the last one's successors.
    """
    level = graph.trie.level(length)
    num_contexts, num_successors = graph.trie.nodes_per_level[length - 1 : length + 1]
    first = 0
    while first < num_contexts:
        bounds = level[first : min(first + _CONTEXTS_AT_A_TIME, num_contexts) + 1, CHILD].astype(np.int64)
        if bounds[-1] > num_successors or np.any(np.diff(bounds) < 0):
            raise damaged("the graph", f"successors of contexts of {length} tokens are out of order")
        # As many contexts as have a bounded number of successors together, but one at least.
        fitting = int(np.searchsorted(bounds, bounds[0] + _SUCCESSORS_AT_A_TIME, "right")) - 1
        bounds = bounds[: max(1, fitting) + 1]
        yield first, bounds
        first += bounds.size - 1


def _records(
    graph: NgramGraph, length: int, first: int, bounds: Int64Array, min_count: int
) -> tuple[NDArray[np.int32], int]:
    """Return the words of a run of contexts, and how many of them are kept.

    Args:
        graph: the graph.
        length: tokens of a context.
        first: number of the first one.
        bounds: where the successors of each begin, shape ``[contexts + 1]``.
        min_count: contexts that occur less often are left out.
    """
    num_contexts = bounds.size - 1
    below = graph.trie.level(length + 1)[bounds[0] : bounds[-1] + 1]
    counts = np.diff(graph.trie.level(length)[first : first + num_contexts + 1, CUMULATIVE])
    sizes = np.diff(bounds)
    kept = (counts >= min_count) & (sizes > 0)
    of_kept = np.repeat(kept, sizes)
    totals = np.diff(below[bounds - bounds[0], CUMULATIVE])[kept]
    sizes = sizes[kept]

    starts = np.cumsum(LONGEST + 1 + 2 * sizes) - (LONGEST + 1 + 2 * sizes)
    words = np.full(int((LONGEST + 1 + 2 * sizes).sum()), -1, _WORD)
    ngrams = graph.ngrams(length, first, first + num_contexts)[kept]
    words[starts[:, None] + np.arange(length)] = ngrams
    words[starts + LONGEST] = sizes
    # The j-th successor of a context is 2 j words behind its head.
    numbers = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    places = np.repeat(starts + LONGEST + 1, sizes) + 2 * numbers
    words[places] = below[:-1, TOKEN][of_kept] & TOKEN_MASK
    words[places + 1] = _in_proportion(np.diff(below[:, CUMULATIVE])[of_kept], totals, sizes)
    return words, int(sizes.size)


def _in_proportion(counts: UInt32Array, totals: UInt32Array, sizes: Int64Array) -> UInt32Array:
    """Return counts, divided where those of a context add up to more than :data:`LARGEST_TOTAL`; all stay positive."""
    divisors = -(-totals.astype(np.int64) // LARGEST_TOTAL)
    return np.maximum(counts // np.repeat(divisors.astype(np.uint32), sizes), np.uint32(1))
