"""Chains for a whole batch in one call: what :mod:`speculant_graph.draft.chain` does, sequence after sequence.

Calling a kernel from Python and packing what it returns takes longer than drafting ten tokens. A step of a batch is so
one call, and its result is what travels.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from speculant_graph.draft.chain import Float64Array, draft_attentively, sample
from speculant_graph.graph.compiled import compiled
from speculant_graph.graph.layout import TOKEN_MASK, Int64Array, UInt32Array
from speculant_graph.graph.lookup import _best_child, _linked, _row, _settle, _width

_FIRST_ROOM = 512


@compiled
def sample_batch(
    words: UInt32Array,
    table: Int64Array,
    states: Int64Array,
    budgets: Int64Array,
    seeds: Int64Array,
    positions: Int64Array,
    max_candidates: int,
    max_support: int,
    attention: Float64Array,
) -> Any:
    """Draft a chain for every sequence by :func:`~speculant_graph.draft.chain.sample`.

    Args:
        words: the block of the trie.
        table: its table.
        states: per sequence (order, record) of the longest known context at its end, shape ``[sequences, 2]``.
        budgets: per sequence, most tokens to draft.
        seeds: per sequence, seed of the draws, a signed 64-bit integer.
        positions: per sequence, index of the first token drafted.
        max_candidates: most tokens that a distribution keeps; 0 keeps all.
        max_support: entries that all distributions together may have; once there are more, no further sequence is
            drafted for. 0 keeps no distribution.
        attention: see ``sample``.

    Returns:
        ``(lengths, token_ids, counts, support, probabilities)``: tokens drafted per sequence; those tokens, one
        sequence after another; the size of the distribution of each; the distributions. Of distributions that are not
        kept there is nothing.
    """
    total = np.int64(0)
    for budget in budgets:
        total += budget
    lengths = np.empty(budgets.size, np.int64)
    token_ids, counts = np.empty(total, np.int64), np.empty(total, np.int64)
    support, probabilities = np.empty(_FIRST_ROOM, np.uint32), np.empty(_FIRST_ROOM, np.float32)
    nodes = size = 0
    for index in range(budgets.size):
        lengths[index] = 0
        if max_support > 0 and size > max_support:
            continue
        drafted, ends, tokens, masses = sample(
            words,
            table,
            states[index, 0],
            states[index, 1],
            budgets[index],
            seeds[index],
            positions[index],
            max_candidates,
            attention,
        )
        lengths[index] = drafted.size
        begin = np.int64(0)
        for place in range(drafted.size):
            token_ids[nodes + place], counts[nodes + place] = drafted[place], ends[place] - begin
            begin = ends[place]
        nodes += drafted.size
        if max_support == 0:
            continue
        if size + tokens.size > support.size:
            room = 2 * (size + tokens.size)
            grown = np.empty(room, np.uint32), np.empty(room, np.float32)
            for place in range(size):  # assigning slices would compile for seconds
                grown[0][place], grown[1][place] = support[place], probabilities[place]
            support, probabilities = grown
        for place in range(tokens.size):
            support[size + place], probabilities[size + place] = tokens[place], masses[place]
        size += tokens.size
    return lengths, token_ids[:nodes], counts[: nodes if max_support > 0 else 0], support[:size], probabilities[:size]


@compiled
def greedy_batch(
    words: UInt32Array, table: Int64Array, states: Int64Array, budgets: Int64Array, attention: Float64Array
) -> Any:
    """Draft a chain for every sequence by taking the most probable token, of equals the lowest id.

    Args:
        words: the block of the trie.
        table: its table.
        states: per sequence (order, record) of the longest known context at its end, shape ``[sequences, 2]``.
        budgets: per sequence, most tokens to draft.
        attention: weights of order, logarithm of the count and entropy; temperature. Empty: the longest known context
            alone decides, and its order is kept while the window slides.

    Returns:
        ``(lengths, token_ids)``: tokens drafted per sequence; those tokens, one sequence after another.
    """
    total = np.int64(0)
    for budget in budgets:
        total += budget
    lengths, token_ids = np.empty(budgets.size, np.int64), np.empty(total, np.int64)
    nodes = np.int64(0)
    for index in range(budgets.size):
        order, node = states[index, 0], states[index, 1]
        step = np.int64(0)
        if attention.size > 0:
            drafted = token_ids[nodes : nodes + budgets[index]]
            step += draft_attentively(words, table, order, node, drafted, attention)
        else:
            while step < budgets[index] and order > 0:
                low, high = _row(words, table, order, node)
                child = _best_child(words, table, order, node, low, high)
                token_ids[nodes + step] = (
                    np.int64(words[table[order, 0] + child * _width(table, order + 1)]) & TOKEN_MASK
                )
                step += 1
                order, node = _settle(words, table, order, _linked(words, table, order + 1, child))
        lengths[index] = step
        nodes += step
    return lengths, token_ids[:nodes]
