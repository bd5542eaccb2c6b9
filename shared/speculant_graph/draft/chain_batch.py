"""Chains for a whole batch in one call: what :mod:`speculant_graph.draft.chain` does for each sequence.

Calling a kernel from Python and packing what it returns takes longer than drafting ten tokens. A step of a batch is so
one call, and its result is what travels.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from speculant_graph.draft.chain import (
    Float32Array,
    Float64Array,
    _frequencies,
    _mixture,
    _successors,
    couple,
    draft_attentively,
    propose,
    uniform,
)
from speculant_graph.draft.masses import temper
from speculant_graph.graph.compiled import Integer, compiled, inlined
from speculant_graph.graph.layout import INNER_WORDS, TOKEN_MASK, Int64Array, UInt32Array
from speculant_graph.graph.lookup import _advance, _best_child, _linked, _row, _settle, _width
from speculant_graph.graph.prefetch import prefetch
from speculant_graph.random_stream import PROPOSAL_STREAM

_FIRST_ROOM = 1_024


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
    is_coupled: bool,
    temperature: float,
    attention: Float64Array,
) -> Any:
    """Draft a chain for every sequence by :func:`~speculant_graph.draft.chain.sample`.

    All sequences take a step before any takes the next one, so that the memory which one needs is on its way while the
    others are served: a graph is larger than any cache.

    Args:
        words: the block of the trie.
        table: its table.
        states: per sequence (order, record) of the longest known context at its end, shape ``[sequences, 2]``.
        budgets: per sequence, most tokens to draft.
        seeds: per sequence, seed of the draws, a signed 64-bit integer.
        positions: per sequence, index of the first token drafted.
        max_candidates: most tokens that a distribution keeps; 0 keeps all.
        max_support: most entries of all distributions together: a chain ends before a distribution that may not fit,
            so before its token is drawn, or the tokens that are there would not be draws any more. 0 keeps no
            distribution.
        is_coupled: whether to draw by the noise that verifiers share.
        temperature: see ``sample``.
        attention: see ``sample``.

    Returns:
        ``(lengths, token_ids, counts, support, probabilities)``: tokens drafted per sequence; those tokens, one
        sequence after another; the size of the distribution of each; the distributions. Of distributions that are not
        kept there is nothing.
    """
    deepest = np.int64(0)
    for budget in budgets:
        deepest = max(deepest, budget)
    lengths = np.zeros(budgets.size, np.int64)
    drawn_tokens = np.empty((budgets.size, deepest), np.int64)
    starts, ends = np.empty((budgets.size, deepest), np.int64), np.empty((budgets.size, deepest), np.int64)
    support, probabilities = np.empty(_FIRST_ROOM, np.uint32), np.empty(_FIRST_ROOM, np.float32)
    orders, nodes = np.empty(budgets.size, np.int64), np.empty(budgets.size, np.int64)
    for index in range(budgets.size):
        orders[index], nodes[index] = states[index, 0], states[index, 1]
        _ask_for_record(words, table, orders[index], nodes[index])
    size, is_going = np.int64(0), True
    for step in range(deepest):
        if not is_going:
            break
        is_going = False
        for index in range(budgets.size):
            if lengths[index] == step and step < budgets[index]:
                orders[index], nodes[index] = _settle(words, table, orders[index], nodes[index])
                _ask_for_row(words, table, orders[index], nodes[index])
        for index in range(budgets.size):
            order, node = orders[index], nodes[index]
            if lengths[index] != step or step >= budgets[index] or order == 0:
                continue
            if attention.size > 0:
                level = np.int64(1)
                low, masses = _mixture(words, table, order, node, attention)
                total = 1.0
            else:
                level = order
                low, high = _successors(words, table, order, node)
                masses, total = _frequencies(words, table, order, low, high)
            if temperature != 1.0:
                total = temper(masses, temperature)
            room = min(masses.size, max_candidates) if max_candidates > 0 else masses.size
            if 0 < max_support < size + room:
                continue  # nor at a later step, as the chain is shorter than those are
            if size + room > support.size:
                grown = np.empty(2 * size + room, np.uint32), np.empty(2 * size + room, np.float32)
                for place in range(size):  # assigning slices would compile for seconds
                    grown[0][place], grown[1][place] = support[place], probabilities[place]
                support, probabilities = grown
            width = _width(table, level + 1)
            place = table[level, 0] + low * width
            number = uniform(seeds[index], positions[index] + step, PROPOSAL_STREAM)
            written, drawn = propose(
                words, place, width, masses, total, max_candidates, number, support[size:], probabilities[size:]
            )
            if drawn < 0:
                continue
            if is_coupled:
                end = size + written
                drawn = couple(
                    words, place, width, seeds[index], positions[index] + step, support[size:end],
                    probabilities[size:end],
                )  # fmt: skip
            token_id = np.int64(words[place + drawn * width]) & TOKEN_MASK
            drawn_tokens[index, step], starts[index, step], ends[index, step] = token_id, size, size + written
            if max_support > 0:
                size += written
            lengths[index] = step + 1
            is_going = True
            if attention.size > 0:
                orders[index], nodes[index] = _advance(words, table, order, node, token_id)
            else:
                nodes[index] = _linked(words, table, order + 1, low + drawn)
                _ask_for_record(words, table, order, nodes[index])
    return _in_order(lengths, drawn_tokens, starts, ends, support[:size], probabilities[:size], max_support > 0)


@inlined
def _ask_for_record(words: UInt32Array, table: Int64Array, order: Integer, node: Integer) -> None:
    if order > 0:
        prefetch(words, table[order - 1, 0] + node * INNER_WORDS)


@inlined
def _ask_for_row(words: UInt32Array, table: Int64Array, order: Integer, node: Integer) -> None:
    if order > 0:
        low, high = _row(words, table, order, node)
        if low < high:
            prefetch(words, table[order, 0] + low * _width(table, order + 1))


@compiled
def _in_order(
    lengths: Int64Array,
    drawn_tokens: Int64Array,
    starts: Int64Array,
    ends: Int64Array,
    support: UInt32Array,
    probabilities: Float32Array,
    has_distributions: bool,
) -> Any:
    """Return drafts made step by step as drafts one sequence after another."""
    total = np.int64(0)
    for length in lengths:
        total += length
    token_ids, counts = np.empty(total, np.int64), np.empty(total if has_distributions else 0, np.int64)
    ordered, ordered_probabilities = np.empty(support.size, np.uint32), np.empty(support.size, np.float32)
    node = size = 0
    for index in range(lengths.size):
        for step in range(lengths[index]):
            token_ids[node] = drawn_tokens[index, step]
            if has_distributions:
                counts[node] = ends[index, step] - starts[index, step]
                for place in range(starts[index, step], ends[index, step]):
                    ordered[size], ordered_probabilities[size] = support[place], probabilities[place]
                    size += 1
            node += 1
    return lengths, token_ids, counts, ordered, ordered_probabilities


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
