"""Whether arrays and metadata are those of a graph: what a build guarantees, checked from what the file says.

Every check relies only on what the ones before it have proven, so that damaged arrays are safe to check.
"""

from __future__ import annotations

import numpy as np

from speculant_graph.errors import GraphFileError
from speculant_graph.graph.compiled import compiled
from speculant_graph.graph.layout import (
    CHILD,
    CUMULATIVE,
    LEAF_LINK,
    LINK,
    SCAN_ROW,
    TOKEN,
    TOKEN_BITS,
    TOKEN_MASK,
    Trie,
    UInt32Array,
)
from speculant_graph.graph.metadata import GraphMetadata


@compiled
def columns_are_sound(level: UInt32Array, vocabulary_size: int, num_children: int) -> bool:
    """Return whether tokens are in the vocabulary, counts positive, and rows follow each other up to the last child."""
    size = level.shape[0] - 1
    has_children = level.shape[1] > LINK
    link_column = LINK if has_children else LEAF_LINK
    if level[0, CUMULATIVE] != 0 or (has_children and (level[0, CHILD] != 0 or level[size, CHILD] != num_children)):
        return False
    if level[size, TOKEN] != 0 or level[size, link_column] != 0:
        return False
    for node in range(size):
        token = level[node, TOKEN] & np.uint32(TOKEN_MASK) if has_children else level[node, TOKEN]
        if token >= vocabulary_size:
            return False
        if level[node, CUMULATIVE] >= level[node + 1, CUMULATIVE]:
            return False
        if has_children and level[node, CHILD] > level[node + 1, CHILD]:
            return False
    return True


@compiled
def rows_are_sound(level: UInt32Array, next_level: UInt32Array) -> bool:
    """Return whether rows ascend, none counts more than its context, and the most frequent child is marked."""
    for node in range(level.shape[0] - 1):
        low, high = np.int64(level[node, CHILD]), np.int64(level[node + 1, CHILD])
        total = np.int64(next_level[high, CUMULATIVE]) - np.int64(next_level[low, CUMULATIVE])
        if total > np.int64(level[node + 1, CUMULATIVE]) - np.int64(level[node, CUMULATIVE]):
            return False
        best, best_count = np.int64(0), np.int64(0)
        for child in range(low, high):
            count = np.int64(next_level[child + 1, CUMULATIVE]) - np.int64(next_level[child, CUMULATIVE])
            if count > best_count:
                best, best_count = np.int64(child - low), count
            token = next_level[child, TOKEN] & np.uint32(TOKEN_MASK)
            if child > low and token <= next_level[child - 1, TOKEN] & np.uint32(TOKEN_MASK):
                return False
        if np.int64(level[node, TOKEN] >> np.uint32(TOKEN_BITS)) != min(best, np.int64(SCAN_ROW)):
            return False
    return True


@compiled
def links_are_sound(above: UInt32Array, level: UInt32Array, next_level: UInt32Array, is_first: bool) -> bool:
    """Return whether every child links to the child of its parent's link that has the same token.

    Args:
        above: level L-1; anything for L = 1.
        level: level L.
        next_level: level L+1, whose links are checked.
        is_first: whether L is 1: the link is then the n-gram of the last token alone.
    """
    column = LINK if next_level.shape[1] > LINK else LEAF_LINK
    for node in range(level.shape[0] - 1):
        low, high = np.int64(0), np.int64(level.shape[0] - 1)
        if not is_first:
            link = np.int64(level[node, LINK])
            low, high = np.int64(above[link, CHILD]), np.int64(above[link + 1, CHILD])
        for child in range(np.int64(level[node, CHILD]), np.int64(level[node + 1, CHILD])):
            target = np.int64(next_level[child, column])
            if target < low or target >= high:
                return False
            if (level[target, TOKEN] ^ next_level[child, TOKEN]) & np.uint32(TOKEN_MASK) != 0:
                return False
    return True


def check_graph(trie: Trie, metadata: GraphMetadata) -> None:
    """Refuse a graph that no build writes, in time linear in its size.

    Raises:
        GraphFileError: something does not fit together.
    """
    levels = [trie.level(length) for length in range(1, trie.max_order + 2)]
    sizes = [*trie.nodes_per_level[1:], 0]
    for length, (level, num_children) in enumerate(zip(levels, sizes, strict=True), start=1):
        if not columns_are_sound(level, trie.vocabulary_size, num_children):
            raise _damaged(f"the n-grams of {length} tokens are out of bounds")
    tokens = levels[0][:-1, TOKEN] & np.uint32(TOKEN_MASK)
    if not bool((tokens[1:] > tokens[:-1]).all()) or bool(levels[0][:, LINK].any()):
        raise _damaged("its tokens are out of order")
    if not np.array_equal(trie.first, np.searchsorted(tokens, np.arange(trie.vocabulary_size + 1, dtype=np.uint32))):
        raise _damaged("its table of tokens is wrong")
    for length in range(1, trie.max_order + 1):
        level, next_level = levels[length - 1], levels[length]
        if not rows_are_sound(level, next_level):
            raise _damaged(f"successors of the contexts of {length} tokens are wrong")
        if not links_are_sound(levels[max(0, length - 2)], level, next_level, length == 1):
            raise _damaged(f"links of the n-grams of {length + 1} tokens are wrong")
    _check_metadata(levels, metadata)


def _check_metadata(levels: list[UInt32Array], metadata: GraphMetadata) -> None:
    contexts = tuple(int(np.count_nonzero(np.diff(level[:, CHILD]))) for level in levels[:-1])
    if contexts != metadata.contexts_per_order:
        raise _damaged("it states another number of contexts")
    totals = [int(level[-1, CUMULATIVE]) for level in levels]
    if metadata.min_count > 1:
        is_right = max(totals) <= metadata.num_tokens
    elif metadata.document_boundaries:
        is_right = totals[0] == metadata.num_tokens and totals == sorted(totals, reverse=True)
    else:
        is_right = totals == [max(0, metadata.num_tokens - shorter) for shorter in range(len(totals))]
    if not is_right:
        raise _damaged("its counts do not add up to its tokens")


def _damaged(reason: str) -> GraphFileError:
    return GraphFileError(f"the graph is damaged ({reason}); copy its file or build it again")
