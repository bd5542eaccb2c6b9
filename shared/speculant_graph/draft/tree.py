"""Drafts by calibrated probability of acceptance: best first, and no longer than they pay.

A node of a draft is worth the probability that the target writes the whole path to it. The tree grows by its most
probable node until the budget is spent, so its nodes are the most probable paths of all; with one child a node it is a
chain. Where verifying has a price, the draft is cut where (1 + expected accepted tokens) / price is largest.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from speculant_graph.draft.calibration import (
    SMALLEST_CANDIDATE,
    CalibrationArrays,
    Mixture,
    agreed,
    blend,
    learn,
)
from speculant_graph.draft.escapes import Float64Array
from speculant_graph.draft.evidence import gather
from speculant_graph.draft.history import NOTHING, WINDOW, append_token, fill_window
from speculant_graph.draft.sources import CORPUS
from speculant_graph.draft.views import (
    open_calibration,
    open_costs,
    open_sources,
    open_state,
    open_workspace,
)
from speculant_graph.draft.workspace import Tree
from speculant_graph.graph.compiled import Integer, compiled, embedded, inlined
from speculant_graph.graph.layout import Int64Array
from speculant_graph.graph.lookup import _advance


@inlined
def _comes_before(tree: Tree, first: Integer, second: Integer) -> Any:
    """Return whether a child is more probable than another, or as probable and found earlier."""
    left, right = tree.child_probabilities[first], tree.child_probabilities[second]
    return left > right or (left == right and first < second)


@embedded
def _push(tree: Tree, size: Integer, child: Integer) -> None:
    """Add a child to a heap of ``size``."""
    heap = tree.heap
    place = size
    while place > 0:
        above = (place - 1) >> 1
        if not _comes_before(tree, child, heap[above]):
            break
        heap[place] = heap[above]
        place = above
    heap[place] = child


@embedded
def _pop(tree: Tree, size: Integer) -> Integer:
    """Remove the most probable child of a heap of ``size`` and return it."""
    heap = tree.heap
    best, last = heap[0], heap[size - 1]
    size -= 1
    place: Integer = 0
    while True:
        below: Integer = 2 * place + 1
        if below >= size:
            break
        if below + 1 < size and _comes_before(tree, heap[below + 1], heap[below]):
            below += 1
        if not _comes_before(tree, heap[below], last):
            break
        heap[place] = heap[below]
        place = below
    heap[place] = last
    return best


@compiled
def _mix(
    drafter: Int64Array, sequence: Int64Array, end: Integer, order: Integer, node: Integer, inside: Integer
) -> None:
    """Mix the distribution that follows ``window[:end]``; the one place that all kernels share, compiled once."""
    sources, workspace = open_sources(drafter, sequence), open_workspace(drafter)
    calibration = open_calibration(drafter)
    # Numbers come as int64 from every caller, or this would be compiled once more for a constant.
    gather(sources, calibration.escapes, workspace.tree.window, end, order, node, workspace.entries)
    blend(calibration, workspace.entries, workspace.mixture, inside)


@inlined
def _write_path(tree: Tree, node: Integer) -> None:
    """Write the tokens of the path to a node into the window."""
    ancestor = node
    for place in range(WINDOW + tree.depths[node] - 1, WINDOW - 1, -1):
        tree.window[place] = tree.tokens[ancestor]
        ancestor = tree.parents[ancestor]


@embedded
def _agree(calibration: CalibrationArrays, mixture: Mixture) -> None:
    """Take agreement into account for every candidate that may be drafted."""
    for candidate in range(mixture.size[0]):
        probability = mixture.probabilities[candidate]
        if probability >= SMALLEST_CANDIDATE:
            mixture.probabilities[candidate] = agreed(calibration, probability, mixture.supports[candidate])


@inlined
def _take_best(mixture: Mixture) -> Any:
    """Return the most probable candidate and its probability, and leave it out from now on; -1 if none is left."""
    chosen: Integer = np.int64(-1)
    highest = SMALLEST_CANDIDATE
    for candidate in range(mixture.size[0]):
        if mixture.probabilities[candidate] > highest:
            chosen, highest = candidate, mixture.probabilities[candidate]
    if chosen >= 0:
        mixture.probabilities[chosen] = 0.0
    return chosen, min(highest, 1.0)


@embedded
def _may_pay(
    costs: Float64Array,
    budget: int,
    nodes: Integer,
    expected: float,
    next_best: float,
    best: float,
) -> bool:
    """Return whether any longer draft could be worth more than the best so far, were all nodes as good as the next."""
    for more in range(nodes + 1, budget + 1):
        expected += next_best
        if (1.0 + expected) / costs[1 + more] > best:
            return True
    return False


@compiled
def grow(
    drafter: Int64Array,
    sequence: Int64Array,
    budget: int,
    max_depth: int,
    branches: int,
    trust: float,
) -> int:
    """Draft a tree, most probable node first.

    Args:
        drafter: handles of graph, calibration and workspace, whose ``tree`` takes the result: nodes 1, 2, ... of
            ``tokens``, ``parents`` and ``probabilities``.
        sequence: handles of its sources, its place in the graph and its costs: of verifying n tokens relative to one,
            at least ``budget + 2`` of them, or none if nodes are free.
        budget: most nodes.
        max_depth: longest path.
        branches: most children of a node.
        trust: factor of expected acceptance in the price, at most 1.

    Returns:
        The number of nodes.
    """
    sources, state, costs = (
        open_sources(drafter, sequence),
        open_state(sequence),
        open_costs(sequence),
    )
    calibration, workspace = open_calibration(drafter), open_workspace(drafter)
    tree, mixture = workspace.tree, workspace.mixture
    fill_window(sources.session, tree.window)
    tree.probabilities[0] = 1.0
    tree.depths[0] = 0
    tree.states[0, 0], tree.states[0, 1] = state[0], state[1]
    heap_size, num_children = np.int64(0), np.int64(0)
    nodes, current = np.int64(0), np.int64(0)
    paying = np.int64(0)
    best, expected = 1.0, 0.0
    while nodes < budget:
        if tree.depths[current] < max_depth:
            _write_path(tree, current)
            end, inside = WINDOW + tree.depths[current], 1 if current > 0 else 0
            _mix(drafter, sequence, end, tree.states[current, 0], tree.states[current, 1], inside)
            _agree(calibration, mixture)
            for _ in range(branches):
                chosen, probability = _take_best(mixture)
                if chosen < 0:
                    break
                tree.child_tokens[num_children] = mixture.tokens[chosen]
                tree.child_parents[num_children] = current
                tree.child_probabilities[num_children] = tree.probabilities[current] * probability
                _push(tree, heap_size, num_children)
                heap_size += 1
                num_children += 1
        if heap_size == 0:
            break
        child = _pop(tree, heap_size)
        heap_size -= 1
        probability = tree.child_probabilities[child]
        if costs.size > 0 and not _may_pay(costs, budget, nodes, expected, trust * probability, best):
            break
        parent = tree.child_parents[child]
        nodes += 1
        tree.tokens[nodes] = tree.child_tokens[child]
        tree.parents[nodes] = parent
        tree.probabilities[nodes] = probability
        tree.depths[nodes] = tree.depths[parent] + 1
        if sources.enabled[CORPUS] > 0:
            order, node = _advance(
                sources.graph.words,
                sources.graph.table,
                tree.states[parent, 0],
                tree.states[parent, 1],
                tree.child_tokens[child],
            )
            tree.states[nodes, 0], tree.states[nodes, 1] = order, node
        current = nodes
        expected += trust * probability
        if costs.size > 0 and (1.0 + expected) / costs[1 + nodes] > best:
            best, paying = (1.0 + expected) / costs[1 + nodes], nodes
    return int(paying if costs.size > 0 else nodes)


@compiled
def propose(
    drafter: Int64Array,
    sequence: Int64Array,
    path: Int64Array,
    token_ids: Int64Array,
    probabilities: Float64Array,
) -> int:
    """Write what may follow a path from the end of the sequence, the most probable first.

    Args:
        drafter: handles of graph, calibration and workspace.
        sequence: handles of its sources and its place in the graph.
        path: tokens after it, at most :data:`MAX_DEPTH`.
        token_ids: output; its size is the most that is asked for.
        probabilities: output.

    Returns:
        How many there are.
    """
    sources, state = open_sources(drafter, sequence), open_state(sequence)
    calibration, workspace = open_calibration(drafter), open_workspace(drafter)
    window, mixture = workspace.tree.window, workspace.mixture
    fill_window(sources.session, window)
    order, node = state[0], state[1]
    for place in range(path.size):
        window[WINDOW + place] = path[place]
        if sources.enabled[CORPUS] > 0:
            order, node = _advance(sources.graph.words, sources.graph.table, order, node, path[place])
    _mix(drafter, sequence, np.int64(WINDOW + path.size), order, node, np.int64(1 if path.size > 0 else 0))
    _agree(calibration, mixture)
    for index in range(token_ids.size):
        chosen, probability = _take_best(mixture)
        if chosen < 0:
            return index
        token_ids[index] = mixture.tokens[chosen]
        probabilities[index] = probability
    return token_ids.size


@compiled
def take(
    drafter: Int64Array, sequence: Int64Array, token_ids: Int64Array, vocabulary_size: Integer, learns: bool
) -> None:
    """Add tokens to a sequence, learning from each one if asked to.

    Args:
        drafter: handles of graph, calibration (changed if ``learns``) and workspace.
        sequence: handles of its sources, the session among them with room for the tokens, and its place in the graph,
            which moves to the new end.
        token_ids: the tokens, shape ``[n]``; what is not in the vocabulary is taken as :data:`NOTHING`.
        vocabulary_size: ids below it are tokens.
        learns: whether to learn how far the sources could be trusted.
    """
    sources, state = open_sources(drafter, sequence), open_state(sequence)
    calibration, workspace = open_calibration(drafter), open_workspace(drafter)
    window = workspace.tree.window
    fill_window(sources.session, window)
    for place in range(token_ids.size):
        token_id = token_ids[place]
        if not 0 <= token_id < vocabulary_size:
            token_id = NOTHING
        if learns:
            _mix(drafter, sequence, np.int64(WINDOW), state[0], state[1], np.int64(1 if place > 0 else 0))
            learn(
                calibration,
                sources.graph,
                workspace.entries,
                workspace.mixture,
                token_id,
            )
        append_token(sources.session, window, token_id)
        if sources.graph.words.size > 1:  # also while the corpus is not drafted from, as it may be later
            order, node = _advance(sources.graph.words, sources.graph.table, state[0], state[1], token_id)
            state[0], state[1] = order, node
