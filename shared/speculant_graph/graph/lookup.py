"""The kernels of every lookup.

No index that comes from a file is used before it is compared with the size of its level, so a damaged file gives wrong
drafts at worst.

A state is (order, node): the context of so many tokens that is this record of its level; order 0 is no context.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from speculant_graph.graph.compiled import Integer, compiled, inlined
from speculant_graph.graph.layout import (
    CHILD,
    CUMULATIVE,
    INNER_WORDS,
    LEAF_LINK,
    LEAF_WORDS,
    LINK,
    SCAN_ROW,
    TOKEN_BITS,
    TOKEN_MASK,
    Int64Array,
    UInt32Array,
)

_LINEAR = 4


@inlined
def _row(words: UInt32Array, table: Int64Array, order: Integer, node: Integer) -> Any:
    """Return the children of a node of level ``order`` as a range of the next level; empty if they can't be."""
    place = table[order - 1, 0] + node * INNER_WORDS + CHILD
    low, high = np.int64(words[place]), np.int64(words[place + INNER_WORDS])
    if low > high or high > table[order, 1]:
        return np.int64(0), np.int64(0)
    return low, high


@inlined
def _width(table: Int64Array, level: Integer) -> Any:
    return INNER_WORDS if level < table.shape[0] - 2 else LEAF_WORDS


@inlined
def _find_child(
    words: UInt32Array, table: Int64Array, order: Integer, low: Integer, high: Integer, token_id: Integer
) -> Any:
    """Return the record of level ``order + 1`` with this token in a row, or -1."""
    width = _width(table, order + 1)
    start = table[order, 0]
    while high - low > _LINEAR:
        middle = (low + high) >> 1
        if np.int64(words[start + middle * width]) & TOKEN_MASK <= token_id:
            low = middle
        else:
            high = middle
    while low < high:
        if np.int64(words[start + low * width]) & TOKEN_MASK == token_id:
            return low
        low += 1
    return np.int64(-1)


@inlined
def _find_single(words: UInt32Array, table: Int64Array, token_id: Integer) -> Any:
    """Return the record of level 1 with this token, or -1."""
    max_order = table.shape[0] - 3
    if token_id < 0 or token_id >= table[max_order + 1, 1]:
        return np.int64(-1)
    node = np.int64(words[table[max_order + 1, 0] + token_id])
    if node >= table[0, 1] or np.int64(words[table[0, 0] + node * INNER_WORDS]) & TOKEN_MASK != token_id:
        return np.int64(-1)
    return node


@inlined
def _linked(words: UInt32Array, table: Int64Array, level: Integer, node: Integer) -> Any:
    """Return the record of level ``level - 1`` >= 1 that a node of ``level`` links to; 0 if it can't be."""
    width = _width(table, level)
    column = LINK if width == INNER_WORDS else LEAF_LINK
    link = np.int64(words[table[level - 1, 0] + node * width + column])
    return link if link < table[level - 2, 1] else np.int64(0)


@inlined
def _settle(words: UInt32Array, table: Int64Array, order: Integer, node: Integer) -> Any:
    """Follow links until the context has successors."""
    while order > 0:
        low, high = _row(words, table, order, node)
        if low < high:
            break
        if order > 1:
            node = _linked(words, table, order, node)
        order -= 1
    return order, node


@inlined
def _advance(words: UInt32Array, table: Int64Array, order: Integer, node: Integer, token_id: Integer) -> Any:
    """Return the longest context with successors after one token more."""
    max_order = table.shape[0] - 3
    if order == max_order:
        if order > 1:
            node = _linked(words, table, order, node)
        order -= 1
    while order > 0:
        low, high = _row(words, table, order, node)
        child = _find_child(words, table, order, low, high, token_id)
        if child >= 0:
            return _settle(words, table, order + 1, child)
        if order > 1:
            node = _linked(words, table, order, node)
        order -= 1
    single = _find_single(words, table, token_id)
    if single < 0:
        return np.int64(0), np.int64(0)
    return _settle(words, table, np.int64(1), single)


@compiled
def find_context(words: UInt32Array, table: Int64Array, context: Int64Array) -> Any:
    """Return the longest end of ``context`` that has successors, in at most 2N searches."""
    max_order = table.shape[0] - 3
    order, node = np.int64(0), np.int64(0)
    for place in range(max(0, context.size - max_order), context.size):
        order, node = _advance(words, table, order, node, context[place])
    return order, node


@compiled
def find_ngram(words: UInt32Array, table: Int64Array, ngram: Int64Array) -> Any:
    """Return the record of an n-gram of 1 to N+1 tokens on its level, or -1."""
    node = _find_single(words, table, ngram[0])
    for order in range(1, ngram.size):
        if node < 0:
            break
        low, high = _row(words, table, order, node)
        node = _find_child(words, table, order, low, high, ngram[order])
    return node


@compiled
def row_of(words: UInt32Array, table: Int64Array, order: int, node: int) -> Any:
    """Return a context's successors as a range of records of level ``order + 1``."""
    return _row(words, table, order, node)


@compiled
def read_row(
    words: UInt32Array, table: Int64Array, level: int, low: int, token_ids: UInt32Array, counts: UInt32Array
) -> None:
    """Copy tokens and counts of the records from ``low`` on, as many as the outputs hold."""
    width = _width(table, level)
    place = table[level - 1, 0] + low * width
    before = words[place + CUMULATIVE]
    for index in range(token_ids.size):
        token_ids[index] = words[place] & np.uint32(TOKEN_MASK)
        place += width
        after = words[place + CUMULATIVE]
        counts[index] = after - before
        before = after


@inlined
def _best_child(
    words: UInt32Array, table: Int64Array, order: Integer, node: Integer, low: Integer, high: Integer
) -> Any:
    """Return the most frequent record of a row that is not empty; of equals the first."""
    offset = np.int64(words[table[order - 1, 0] + node * INNER_WORDS]) >> TOKEN_BITS
    if offset < SCAN_ROW and low + offset < high:
        return low + offset
    width = _width(table, order + 1)
    place = table[order, 0] + low * width + CUMULATIVE
    best, best_count = low, np.uint32(0)
    for child in range(low, high):
        count = np.uint32(words[place + width] - words[place])
        if count > best_count:
            best, best_count = child, count
        place += width
    return best


@compiled
def best_child(words: UInt32Array, table: Int64Array, order: int, node: int) -> Any:
    """Return the most frequent successor of a context that has some, as a record of level ``order + 1``."""
    low, high = _row(words, table, order, node)
    return _best_child(words, table, order, node, low, high)


@compiled
def slide(words: UInt32Array, table: Int64Array, order: int, node: int, token_id: int) -> Any:
    """Return the context of the same order one token on, or the longest one that has successors.

    Args:
        words: the block of the trie.
        table: its table.
        order: order of the context to leave.
        node: its record.
        token_id: the token that follows.

    Returns:
        (order, node); order is -1 if the token never followed the context.
    """
    low, high = _row(words, table, order, node)
    child = _find_child(words, table, order, low, high, token_id)
    if child < 0:
        return np.int64(-1), np.int64(0)
    return _settle(words, table, order, _linked(words, table, order + 1, child))


@compiled
def draft_greedy(words: UInt32Array, table: Int64Array, context: Int64Array, token_ids: Int64Array) -> int:
    """Draft the most frequent successors from the longest known context on, its order kept while it can be.

    Returns:
        How many tokens were drafted into ``token_ids``, whose size is the most that is asked for.
    """
    max_order = table.shape[0] - 3
    order, node = np.int64(0), np.int64(0)
    for place in range(max(0, context.size - max_order), context.size):
        order, node = _advance(words, table, order, node, context[place])
    for step in range(token_ids.size):
        if order == 0:
            return step
        low, high = _row(words, table, order, node)
        child = _best_child(words, table, order, node, low, high)
        token_ids[step] = np.int64(words[table[order, 0] + child * _width(table, order + 1)]) & TOKEN_MASK
        order, node = _settle(words, table, order, _linked(words, table, order + 1, child))
    return token_ids.size


@compiled
def spell(words: UInt32Array, table: Int64Array, level: int, start: int, ngrams: UInt32Array) -> None:
    """Write out the n-grams of records ``start``, ``start + 1``, ... of a level.

    Args:
        words: the block of the trie.
        table: its table.
        level: tokens of the n-grams.
        start: first record.
        ngrams: output, shape ``[as many as wanted, level]``.
    """
    width = _width(table, level)
    for index in range(ngrams.shape[0]):
        ngrams[index, level - 1] = words[table[level - 1, 0] + (start + index) * width] & np.uint32(TOKEN_MASK)
    nodes = np.arange(start, start + ngrams.shape[0])
    for depth in range(level - 1, 0, -1):
        place, size = table[depth - 1, 0], table[depth - 1, 1]
        # The parent is the last record of the level above whose children do not begin behind the node.
        low, high = np.int64(0), size
        while high - low > 1:
            middle = (low + high) >> 1
            if np.int64(words[place + middle * INNER_WORDS + CHILD]) <= nodes[0]:
                low = middle
            else:
                high = middle
        parent = low
        for index in range(ngrams.shape[0]):
            while parent + 1 < size and np.int64(words[place + (parent + 1) * INNER_WORDS + CHILD]) <= nodes[index]:
                parent += 1
            ngrams[index, depth - 1] = words[place + parent * INNER_WORDS] & np.uint32(TOKEN_MASK)
            nodes[index] = parent
