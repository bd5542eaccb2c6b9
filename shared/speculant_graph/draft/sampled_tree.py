"""Trees that ``sampling`` draws; ``reference.py`` is what the kernel does, word for word.

**The shape.** Every place for a node has a price: a first child costs 1 more than its parent, and every further child
:data:`SIBLING_PRICE` more than the one before it. The cheapest place is filled first, of equals that below the oldest
node, until the budget is spent. The children of a node come in the order in which they were drawn, all with the same q.
There is no place where q has no other token, where no context is known, where there is no room for another q, and below
a token that an older sibling has, which no rule can reach.

**Why that is exact.** Whether a place is filled is decided by what was drawn before it, never by the token that is
drawn for it: no token is looked at and dropped. All that leads a rule to a node was drawn before that node's children.
So, whatever it was, the next child is a fresh draw from q, or from what is left of q; and where there is none, the rule
draws from the model.

**Numbers.** Node j takes the number of (seed, index of the draft's first token, j). Every step of a sequence begins
further on, so no number is taken twice, and what a rule has seen of one draft says nothing about the next one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from speculant_graph.draft.batch import DraftBatch
from speculant_graph.draft.chain import (
    Float32Array,
    Float64Array,
    _frequencies,
    _mixture,
    _successors,
    propose,
    uniform,
)
from speculant_graph.draft.masses import temper
from speculant_graph.graph.compiled import compiled
from speculant_graph.graph.layout import TOKEN_MASK, Int64Array, Trie, UInt32Array
from speculant_graph.graph.lookup import _advance, _linked, _settle, _width
from speculant_graph.random_stream import TREE_STREAM

SIBLING_PRICE = 2
"""What a further child costs, where a first one costs 1."""

_FIRST_ROOM = 512
_NOT_KNOWN = -1
_NO_NUMBERS, _NO_TOKENS, _NO_MASSES = np.zeros(0, np.int64), np.zeros(0, np.uint32), np.zeros(0, np.float32)


@dataclass(frozen=True, slots=True)
class TreeShape:
    """What is known of a tree before it is drawn."""

    is_independent: bool
    """Draw every child of a node from all of q, rather than from what older siblings have left."""
    max_branches: int
    """Most children of a node."""
    max_depth: int
    """Longest path."""


def draw_trees(
    trie: Trie,
    states: Sequence[tuple[int, int]],
    budgets: Sequence[int],
    shape: TreeShape,
    *,
    seeds: Sequence[int],
    positions: Sequence[int],
    max_candidates: int,
    max_support: int,
    temperature: float,
    attention: Float64Array,
) -> DraftBatch:
    """Draw a tree for every sequence; every node brings its q, as those of chains do.

    Args:
        trie: the graph's.
        states: per sequence (order, record) of the longest context at its end that is known.
        budgets: per sequence, most nodes.
        shape: of all trees.
        seeds: per sequence, seed of the draws, a signed 64-bit integer.
        positions: per sequence, index of the first token drafted, likewise.
        max_candidates: most successors that a distribution keeps; 0 keeps all.
        max_support: most entries of the distributions of all nodes together.
        temperature: see :func:`~speculant_graph.draft.chain.sample`.
        attention: likewise.
    """
    lengths: list[int] = []
    token_ids, parents, counts = [_NO_NUMBERS], [_NO_NUMBERS], [_NO_NUMBERS]
    candidates, masses = [_NO_TOKENS], [_NO_MASSES]
    left = max_support
    for (order, node), budget, seed, position in zip(states, budgets, seeds, positions, strict=True):
        drawn, parents_of, starts, ends, support, probabilities = sample_tree(
            trie.words, trie.table, order, node, max(0, budget), seed, position, max_candidates, left,
            shape.max_branches, shape.max_depth, shape.is_independent, temperature, attention,
        )  # fmt: skip
        left -= int((ends - starts).sum())
        lengths.append(drawn.size)
        token_ids.append(drawn)
        parents.append(parents_of)
        counts.append(ends - starts)
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            candidates.append(support[start:end])
            masses.append(probabilities[start:end])
    return DraftBatch(
        "sampling",
        lengths,
        [length < budget for length, budget in zip(lengths, budgets, strict=True)],
        np.concatenate(token_ids),
        np.concatenate(parents),
        (),
        np.concatenate(counts),
        np.concatenate(candidates),
        np.concatenate(masses),
    )


@compiled
def pick(probabilities: Float32Array, is_taken: NDArray[np.bool_], number: float) -> int:
    """Draw from what is left of q.

    Args:
        probabilities: q, shape ``[s]``.
        is_taken: what is not left of it, shape ``[s]``; not everything.
        number: quantile to draw at.

    Returns:
        Place in q.
    """
    left = 0.0
    for place in range(probabilities.size):
        if not is_taken[place]:
            left += np.float64(probabilities[place])
    cumulative, drawn = 0.0, 0
    for place in range(probabilities.size):
        if not is_taken[place]:
            cumulative += np.float64(probabilities[place])
            drawn = place
            if cumulative > number * left:
                break
    return drawn  # rounding may leave the sum too small: the rest belongs to the last one


@compiled
def sample_tree(
    words: UInt32Array,
    table: Int64Array,
    order: int,
    node: int,
    num_nodes: int,
    seed: int,
    position: int,
    max_candidates: int,
    max_support: int,
    max_branches: int,
    max_depth: int,
    is_independent: bool,
    temperature: float,
    attention: Float64Array,
) -> Any:
    """Draft a tree by drawing the children of every node from the distribution of its context.

    Args:
        words: the block of the trie.
        table: its table.
        order: order of the longest known context; 0 if none is known.
        node: its record.
        num_nodes: most nodes to draft.
        seed: seed of the draws, a signed 64-bit integer, as is the position.
        position: index in the sequence of the first token drafted.
        max_candidates: most tokens that a distribution keeps; 0 keeps all.
        max_support: most entries of the distributions of all nodes together.
        max_branches: most children of a node.
        max_depth: longest path.
        is_independent: draw every child from all of q, rather than from what older siblings have left.
        temperature: see :func:`~speculant_graph.draft.chain.sample`.
        attention: likewise.

    Returns:
        ``(token_ids, parents, starts, ends, support, probabilities)``: the n nodes drafted, as in
        :class:`~speculant_graph.types.Draft`; where the distribution of each begins and ends, shape ``[n]``, the same
        for all children of a node; the distributions one after another, uint32 and float32.
    """
    token_ids, parents = np.empty(num_nodes, np.int64), np.empty(num_nodes, np.int64)
    starts, ends = np.empty(num_nodes, np.int64), np.empty(num_nodes, np.int64)
    # Of the root and all nodes: where it is, what its next child costs, and how many it may still have.
    orders, records = np.empty(num_nodes + 1, np.int64), np.empty(num_nodes + 1, np.int64)
    depths, prices = np.zeros(num_nodes + 1, np.int64), np.ones(num_nodes + 1, np.int64)
    room = np.zeros(num_nodes + 1, np.int64)
    lows, highs = np.full(num_nodes + 1, _NOT_KNOWN), np.full(num_nodes + 1, _NOT_KNOWN)
    support, probabilities = np.empty(_FIRST_ROOM, np.uint32), np.empty(_FIRST_ROOM, np.float32)
    is_drawn, is_taken = np.zeros(_FIRST_ROOM, np.bool_), np.zeros(_FIRST_ROOM, np.bool_)
    orders[0], records[0] = order, node
    room[0] = max_branches if order > 0 and max_depth > 0 else 0
    size = entries = drafted = 0
    while drafted < num_nodes:
        parent = _NOT_KNOWN
        for each in range(drafted + 1):
            if room[each] > 0 and (parent < 0 or prices[each] < prices[parent]):
                parent = each
        if parent < 0:
            break
        order, node = orders[parent], records[parent]
        level = np.int64(1) if attention.size > 0 else order
        width = _width(table, level + 1)
        if lows[parent] < 0:
            if attention.size > 0:
                low, masses = _mixture(words, table, order, node, attention)
                total = 1.0
            else:
                low, high = _successors(words, table, order, node)
                masses, total = _frequencies(words, table, order, low, high)
            if temperature != 1.0:
                total = temper(masses, temperature)
            most = min(masses.size, max_candidates) if max_candidates > 0 else masses.size
            if size + most > support.size:
                grown = np.empty(2 * size + most, np.uint32), np.empty(2 * size + most, np.float32)
                flags = np.zeros(2 * size + most, np.bool_), np.zeros(2 * size + most, np.bool_)
                for place in range(size):  # assigning slices would compile for seconds
                    grown[0][place], grown[1][place] = support[place], probabilities[place]
                    flags[0][place], flags[1][place] = is_drawn[place], is_taken[place]
                support, probabilities = grown
                is_drawn, is_taken = flags
            place = table[level, 0] + low * width
            written, _ = propose(
                words, place, width, masses, total, max_candidates, 0.0, support[size:], probabilities[size:]
            )
            lows[parent], highs[parent] = size, size + written
            size += written
            # A token that is certain is drawn once, however siblings are drawn.
            if written < 2 or not is_independent:
                room[parent] = min(room[parent], written)
            if written == 0:
                continue
        start, end = lows[parent], highs[parent]
        if entries + end - start > max_support:
            room[parent] = 0
            continue
        number = uniform(seed, position, TREE_STREAM + drafted)
        entry = start + pick(probabilities[start:end], is_taken[start:end], number)
        token_ids[drafted], parents[drafted], starts[drafted], ends[drafted] = support[entry], parent, start, end
        entries += end - start
        drafted += 1
        depths[drafted], prices[drafted] = depths[parent] + 1, prices[parent] + 1
        prices[parent] += SIBLING_PRICE
        room[parent] -= 1
        if depths[drafted] < max_depth and not is_drawn[entry]:
            if attention.size > 0:
                orders[drafted], records[drafted] = _advance(words, table, order, node, np.int64(support[entry]))
            else:
                low, _ = _successors(words, table, order, node)
                place, drawn = table[level, 0] + low * width, entry - start
                # A row has all of the support, and tokens of no probability between.
                while words[place + drawn * width] & np.uint32(TOKEN_MASK) != support[entry]:
                    drawn += 1
                orders[drafted], records[drafted] = _settle(
                    words, table, order, _linked(words, table, order + 1, low + drawn)
                )
            room[drafted] = max_branches if orders[drafted] > 0 else 0
        is_drawn[entry] = True
        is_taken[entry] = not is_independent
    return (
        token_ids[:drafted],
        parents[:drafted],
        starts[:drafted],
        ends[:drafted],
        support[:size],
        probabilities[:size],
    )
