"""Drafts by calibrated probability of acceptance: best first, and no longer than they pay.

A node of a draft is worth the probability that the target writes the whole path to it. The tree grows by its most
probable node until the budget is spent, so its nodes are the most probable paths of all; with one child a node it is a
chain. Where verifying has a price, the draft is cut where (1 + expected accepted tokens) / price is largest.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from speculant_graph.draft.calibration import (
    SMALLEST_CANDIDATE,
    CalibrationArrays,
    Float64Array,
    Mixture,
    agreed,
    blend,
    learn,
    make_mixture,
)
from speculant_graph.draft.evidence import CORPUS, Entries, Sources, gather, make_entries
from speculant_graph.draft.history import WINDOW, append_tokens, fill_window
from speculant_graph.graph.compiled import Integer, compiled, inlined
from speculant_graph.graph.layout import Int64Array
from speculant_graph.graph.lookup import _advance

MAX_NODES = 1_024
"""Most nodes of a draft."""
MAX_DEPTH = 255
MAX_BRANCHES = 64


class Tree(NamedTuple):
    """A draft being grown. Node 0 is the root, node j + 1 the draft's j-th node."""

    tokens: Int64Array
    parents: Int64Array
    probabilities: Float64Array
    """Of the whole path."""
    depths: Int64Array
    states: Int64Array
    """(order, record) of the longest context of the graph at a node, shape ``[nodes, 2]``."""
    window: Int64Array
    """The last tokens of the sequence, then the path to the node that grows."""
    heap: Int64Array
    """Children that may become nodes, the most probable first; numbers of the arrays below."""
    child_tokens: Int64Array
    child_parents: Int64Array
    child_probabilities: Float64Array


class Workspace(NamedTuple):
    """Scratch of one thread."""

    tree: Tree
    entries: Entries
    mixture: Mixture


def make_workspace(max_nodes: int, max_branches: int) -> Workspace:
    """Return room for drafts of so many nodes with so many children each."""
    num_children = (max_nodes + 1) * max_branches
    tree = Tree(
        tokens=np.zeros(max_nodes + 1, np.int64),
        parents=np.zeros(max_nodes + 1, np.int64),
        probabilities=np.zeros(max_nodes + 1),
        depths=np.zeros(max_nodes + 1, np.int64),
        states=np.zeros((max_nodes + 1, 2), np.int64),
        window=np.zeros(WINDOW + MAX_DEPTH + 1, np.int64),
        heap=np.zeros(num_children, np.int64),
        child_tokens=np.zeros(num_children, np.int64),
        child_parents=np.zeros(num_children, np.int64),
        child_probabilities=np.zeros(num_children),
    )
    return Workspace(tree, make_entries(), make_mixture())


@inlined
def _comes_before(tree: Tree, first: Integer, second: Integer) -> Any:
    """Return whether a child is more probable than another, or as probable and found earlier."""
    left, right = tree.child_probabilities[first], tree.child_probabilities[second]
    return left > right or (left == right and first < second)


@compiled
def _push(tree: Tree, size: int, child: int) -> None:
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


@compiled
def _pop(tree: Tree, size: int) -> int:
    """Remove the most probable child of a heap of ``size`` and return it."""
    heap = tree.heap
    best, last = heap[0], heap[size - 1]
    size -= 1
    place = 0
    while True:
        below = 2 * place + 1
        if below >= size:
            break
        if below + 1 < size and _comes_before(tree, heap[below + 1], heap[below]):
            below += 1
        if not _comes_before(tree, heap[below], last):
            break
        heap[place] = heap[below]
        place = below
    heap[place] = last
    return int(best)


@inlined
def _distribution(sources: Sources, calibration: CalibrationArrays, workspace: Workspace, node: Integer) -> None:
    """Mix the distribution that follows a node."""
    tree = workspace.tree
    ancestor = node
    for place in range(WINDOW + tree.depths[node] - 1, WINDOW - 1, -1):
        tree.window[place] = tree.tokens[ancestor]
        ancestor = tree.parents[ancestor]
    end = WINDOW + tree.depths[node]
    gather(sources, tree.window, end, tree.states[node, 0], tree.states[node, 1], workspace.entries)
    blend(calibration, workspace.entries, workspace.mixture)


@compiled
def _agree(calibration: CalibrationArrays, mixture: Mixture) -> None:
    """Take agreement into account for every candidate that may be drafted."""
    for candidate in range(mixture.size[0]):
        probability = mixture.probabilities[candidate]
        if probability >= SMALLEST_CANDIDATE:
            mixture.probabilities[candidate] = agreed(calibration, probability, mixture.supports[candidate])


@inlined
def _take_best(mixture: Mixture) -> Any:
    """Return the most probable candidate and its probability, and leave it out from now on; -1 if none is left."""
    chosen, highest = np.int64(-1), SMALLEST_CANDIDATE
    for candidate in range(mixture.size[0]):
        if mixture.probabilities[candidate] > highest:
            chosen, highest = candidate, mixture.probabilities[candidate]
    if chosen >= 0:
        mixture.probabilities[chosen] = 0.0
    return chosen, min(highest, 1.0)


@compiled
def _may_pay(costs: Float64Array, budget: int, nodes: int, expected: float, next_best: float, best: float) -> bool:
    """Return whether any longer draft could be worth more than the best so far, were all nodes as good as the next."""
    for more in range(nodes + 1, budget + 1):
        expected += next_best
        if (1.0 + expected) / costs[1 + more] > best:
            return True
    return False


@compiled
def grow(
    sources: Sources,
    calibration: CalibrationArrays,
    workspace: Workspace,
    state: Int64Array,
    limits: Int64Array,
    costs: Float64Array,
    trust: float,
) -> int:
    """Draft a tree, most probable node first.

    Args:
        sources: what to draft from.
        calibration: how far to trust it.
        workspace: ``tree`` takes the result: nodes 1, 2, ... of ``tokens``, ``parents`` and ``probabilities``.
        state: (order, record) of the longest context of the graph at the end of the sequence.
        limits: (most nodes, longest path, most children of a node).
        costs: cost of verifying n tokens relative to one, shape ``[most nodes + 2]``; empty if nodes are free.
        trust: factor of expected acceptance in the price, at most 1.

    Returns:
        The number of nodes.
    """
    tree, mixture = workspace.tree, workspace.mixture
    budget, max_depth, branches = limits[0], limits[1], limits[2]
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
            _distribution(sources, calibration, workspace, current)
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
    sources: Sources,
    calibration: CalibrationArrays,
    workspace: Workspace,
    state: Int64Array,
    path: Int64Array,
    token_ids: Int64Array,
    probabilities: Float64Array,
) -> int:
    """Write what may follow a path from the end of the sequence, the most probable first.

    Args:
        sources: what to draft from.
        calibration: how far to trust it.
        workspace: scratch.
        state: (order, record) of the longest context of the graph at the end of the sequence.
        path: tokens after it, at most :data:`MAX_DEPTH`.
        token_ids: output; its size is the most that is asked for.
        probabilities: output.

    Returns:
        How many there are.
    """
    window, mixture = workspace.tree.window, workspace.mixture
    fill_window(sources.session, window)
    order, node = state[0], state[1]
    for place in range(path.size):
        window[WINDOW + place] = path[place]
        if sources.enabled[CORPUS] > 0:
            order, node = _advance(sources.graph.words, sources.graph.table, order, node, path[place])
    gather(sources, window, WINDOW + path.size, order, node, workspace.entries)
    blend(calibration, workspace.entries, mixture)
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
    sources: Sources,
    calibration: CalibrationArrays,
    workspace: Workspace,
    state: Int64Array,
    token_ids: Int64Array,
    learns: bool,
) -> None:
    """Add tokens to the sequence, learning from each one if asked to.

    Args:
        sources: the sequence's; ``session`` has room for the tokens.
        calibration: changed if ``learns``.
        workspace: scratch.
        state: (order, record) of the graph, changed to the new end.
        token_ids: the tokens, shape ``[n]``.
        learns: whether to learn how far the sources could be trusted.
    """
    window = workspace.tree.window
    one = np.empty(1, np.int64)
    if not learns:
        append_tokens(sources.session, token_ids)
    for token_id in token_ids:
        if learns:
            fill_window(sources.session, window)
            gather(sources, window, np.int64(WINDOW), state[0], state[1], workspace.entries)
            blend(calibration, workspace.entries, workspace.mixture)
            learn(calibration, sources.graph, workspace.entries, workspace.mixture, token_id)
            one[0] = token_id
            append_tokens(sources.session, one)
        if sources.enabled[CORPUS] > 0:
            order, node = _advance(sources.graph.words, sources.graph.table, state[0], state[1], token_id)
            state[0], state[1] = order, node
