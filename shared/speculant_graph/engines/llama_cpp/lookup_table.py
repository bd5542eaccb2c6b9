"""A graph as the lookup cache of llama.cpp, from which an unmodified ``llama-server`` drafts.

llama.cpp drafts the most frequent successor of the longest context that it finds, if it followed often enough: its
thresholds are fixed, and let contexts of few tokens and two occurrences pass, so that most drafts of a whole graph are
wrong. What it drafts is decided here instead: a context is in the file if its best successor is likely enough, with
that successor alone. Shorter contexts than the longest are left out, as what they draft costs more than it brings
(docs/engines.md).

The file has no head; it is what ``common_ngram_cache_load`` of llama.cpp's ``common/ngram-cache.cpp`` reads, one record
per context, all of them little-endian int32:

.. code-block:: text

    4    token ids of the context, -1 after a shorter one
    1    s, how many tokens followed it
    2 s  the tokens with their counts
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
"""Tokens of the longest context that llama.cpp looks up."""
LARGEST_COUNT = 20_000_000
"""llama.cpp multiplies counts by percentages in 32 bits; larger ones are written as this."""

ALWAYS_ENOUGH = 4
"""Occurrences that are enough for llama.cpp whatever the length of a context."""

_WORD = np.dtype("<i4")
_RECORD_WORDS = LONGEST + 3
_CONTEXTS_AT_A_TIME = 1 << 16


def export_llama_lookup(graph: NgramGraph, path: str | Path, *, min_count: int = 1, min_share: float = 0.6) -> int:
    """Write what llama.cpp is to draft from, as its lookup cache.

    The file is for ``llama-server --spec-type ngram-cache --lookup-cache-dynamic FILE``. As the cache knows token ids
    only, the model must have the graph's tokenizer; nothing compares them. Takes some 50 MB of memory, more
    if contexts have many successors each.

    Args:
        graph: the graph; of one of a lower order than 4 the longest contexts are written.
        path: the file; an older one stays intact until the new one is complete.
        min_count: contexts that occur less often in the corpus are left out.
        min_share: contexts whose most frequent successor has a smaller share of what followed are left out.

    Returns:
        The number of contexts written.

    Raises:
        ConfigError: ``min_count`` is below 1, or ``min_share`` no share.
        GraphFileError: the file can't be written, or the graph is damaged.
    """
    if min_count < 1:
        raise ConfigError(f"{{field}} = {min_count} is below 1", fix="take 1 to keep every context", field="min_count")
    if not 0.0 <= min_share <= 1.0:
        raise ConfigError(f"{{field}} = {min_share} is no share", fix="take a number from 0 to 1", field="min_share")
    num_contexts, length = 0, min(LONGEST, graph.max_order)

    def check(written: Path) -> None:
        words = np.memmap(written, _WORD, "r") if num_contexts else np.empty(0, _WORD)
        if words.size != num_contexts * _RECORD_WORDS or np.any(words[LONGEST::_RECORD_WORDS] != 1):
            raise ValueError("it holds other records than were written")

    with replacing(Path(path), check) as temporary, temporary.open("wb") as file:
        for first, bounds in _portions(graph, length):
            records = _records(graph, length, first, bounds, min_count, min_share)
            file.write(records.data)
            num_contexts += len(records)
    return num_contexts


def _portions(graph: NgramGraph, length: int) -> Iterator[tuple[int, Int64Array]]:
    """Yield runs of contexts of one length: the index of the first, and where the successors of each begin.

    The latter has one number more than there are contexts, the end of the last one's successors.
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
    """Return the records of a run of contexts, shape ``[kept, 7]``.

    Args:
        graph: the graph.
        length: tokens of a context.
        first: index of the first one.
        bounds: where the successors of each begin, shape ``[contexts + 1]``.
        min_count: see above.
        min_share: see above.
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
    # Of several that are as frequent, the first.
    owners = np.repeat(np.arange(starts.size), np.diff(np.append(starts, of_successors.size)))
    candidates = np.flatnonzero(of_successors == best[owners])
    indices = candidates[np.searchsorted(owners[candidates], np.flatnonzero(kept))]
    records = np.full((indices.size, _RECORD_WORDS), -1, _WORD)
    records[:, :length] = graph.ngrams(length, first, first + num_contexts)[has_successors][kept]
    records[:, LONGEST] = 1
    records[:, LONGEST + 1] = below[indices, TOKEN] & TOKEN_MASK
    records[:, LONGEST + 2] = np.clip(best[kept], ALWAYS_ENOUGH, LARGEST_COUNT)
    return records
