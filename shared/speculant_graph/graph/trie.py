"""The arrays of a graph: a sorted forward trie of all n-grams of 1 to N+1 tokens.

Level L holds one node per distinct L-gram, in lexicographic order of token ids. The children of a node are
contiguous in level L+1 and sorted by token id: they are the tokens that ever followed the L-gram, so a node
of level L <= N is also the order-L context and its children row is the successor distribution.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from speculant_graph.errors import GraphFileError

UInt32Array = NDArray[np.uint32]

MAX_TOKENS = 2**32 - 2
"""Most tokens of a corpus: counts and node numbers are 32 bits wide."""


@dataclass(frozen=True, slots=True)
class Trie:
    """One array per column and level; entry ``[L - 1]`` belongs to level L."""

    token_ids: tuple[UInt32Array, ...]
    """N+1 arrays, shape ``[nodes of the level]``: last token of each n-gram."""
    counts: tuple[UInt32Array, ...]
    """N+1 arrays, same shapes: occurrences in the corpus."""
    child_offsets: tuple[UInt32Array, ...]
    """N arrays, shape ``[nodes + 1]``: node i's children are ``offsets[i]:offsets[i + 1]`` of the next
    level."""
    best_children: tuple[UInt32Array, ...]
    """N arrays, shape ``[nodes]``: the child with the highest count, of equals the first; undefined if
    childless."""

    @property
    def max_order(self) -> int:
        """Longest context N."""
        return len(self.child_offsets)


def best_children(counts: UInt32Array, offsets: UInt32Array) -> UInt32Array:
    """Return for each row ``offsets[i]:offsets[i + 1]`` of ``counts`` the index of its first maximum.

    For an empty row that is ``offsets[i]``, which nothing may follow.
    """
    best = offsets[:-1].copy()
    has_children = np.diff(offsets) > 0
    starts = offsets[:-1][has_children].astype(np.intp)
    if starts.size:
        # Empty rows take no room, so each start is the end of the row before it.
        maxima = np.repeat(np.maximum.reduceat(counts, starts), np.diff(starts, append=counts.size))
        hits = np.flatnonzero(counts == maxima)
        best[has_children] = hits[np.searchsorted(hits, starts)]
    return best


def check_trie(trie: Trie, vocabulary_size: int) -> None:
    """Refuse arrays on which a lookup could leave its row, in time linear in their length.

    Raises:
        GraphFileError: shapes, offsets, order of tokens or counts can't be those of a graph.
    """
    for level, (token_ids, counts) in enumerate(zip(trie.token_ids, trie.counts, strict=True), start=1):
        _require(token_ids.size == counts.size, level)
        _require(not counts.size or int(counts.min()) > 0, level)
        _require(not token_ids.size or int(token_ids.max()) < vocabulary_size, level)
        ascends = token_ids[1:] > token_ids[:-1]
        if level > 1:
            starts = trie.child_offsets[level - 2]
            ascends[starts[(starts > 0) & (starts < token_ids.size)] - 1] = True
        _require(bool(ascends.all()), level)
        if level <= trie.max_order:
            offsets, best = trie.child_offsets[level - 1], trie.best_children[level - 1]
            _require(offsets.size == token_ids.size + 1 and best.size == token_ids.size, level)
            _require(int(offsets[0]) == 0 and int(offsets[-1]) == trie.token_ids[level].size, level)
            _require(bool((offsets[1:] >= offsets[:-1]).all()), level)
            inside = (best >= offsets[:-1]) & (best < offsets[1:])
            _require(bool((inside | (offsets[1:] == offsets[:-1])).all()), level)


def _require(is_sound: bool, level: int) -> None:
    if not is_sound:
        raise GraphFileError(f"level {level} of the graph is damaged; build it again")
