"""Drafts that the model draws, with the exact q of every token, for rules that weigh p against q.

q is the model's distribution, tempered, cut to its most probable tokens, and normalised: all of that before a token is
drawn, so that what is returned is what was drawn from. The shape of a draft is decided before anything is drawn. Trees
have the shape that ``sampling`` gives them (``native/drawn_trees.cpp``, with the proof that it is exact): a first child
costs 1 more than its parent and a further one 2 more than the one before it, and the cheapest slots are filled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from speculant_graph import _core
from speculant_graph.random_stream import PROPOSAL_STREAM, TREE_STREAM, uniform
from speculant_graph.types import Draft, Proposal, SiblingsName, TokenId
from speculant_verifier.draft_model.passes import ROW_WIDTH, CachedSequence, DraftPasses, TopRows

_SIBLING_PRICE = 2


@dataclass(frozen=True, slots=True)
class DrawOrder:
    """How to draw for one sequence."""

    cached: CachedSequence
    position: int
    """Of the first token drawn."""
    seed: int
    siblings: SiblingsName
    parents: Sequence[int]
    """The shape: one per node, 0 for the root, j + 1 for node j, ascending."""
    temperature: float
    """0 takes the most probable token for certain."""
    most_candidates: int
    """Most tokens of q."""


@dataclass(slots=True)
class _Drawn:
    """What was drawn for a sequence; nodes of the shape for which nothing was left are missing."""

    tokens: dict[int, TokenId] = field(default_factory=dict)
    proposals: dict[int, Proposal] = field(default_factory=dict)
    of_node: dict[int, Proposal] = field(default_factory=dict)
    """What children of a node are drawn from, by the node's index from 1; 0 for the root."""
    written: dict[int, int] = field(default_factory=dict)
    """Nodes in the cache, as parents of others."""


def shape_of(siblings: SiblingsName, budget: int, max_depth: int, max_branches: int) -> list[int]:
    """Return the parents of a draft's nodes: 0 for the root, j + 1 for node j."""
    if siblings == "none":
        return list(range(min(budget, max_depth)))
    parents: list[int] = []
    slots = [(1, 0, 0, 0)] if max_depth else []  # price, parent, its depth, older siblings
    while slots and len(parents) < budget:
        price, parent, depth, older = min(slots)
        slots.remove((price, parent, depth, older))
        parents.append(parent)
        if older + 1 < max_branches:
            slots.append((price + _SIBLING_PRICE, parent, depth, older + 1))
        if depth + 1 < max_depth:
            slots.append((price + 1, len(parents), depth + 1, 0))
    return parents


def draw_drafts(passes: DraftPasses, orders: Sequence[DrawOrder]) -> list[Draft]:
    """Draw a draft for every sequence, depth by depth: one pass for all nodes of a depth that have children."""
    drawn = [_Drawn() for _ in orders]
    asked: list[list[int]] = [[0] for _ in orders]  # nodes about which the model is asked, from 1; 0 is the root
    while any(asked):
        taking_part = [index for index, nodes in enumerate(asked) if nodes]
        new = []
        for index in taking_part:
            order, nodes = orders[index], drawn[index]
            first, listed = len(order.cached.tokens), []
            for node in asked[index]:
                if node:
                    listed.append((nodes.written[order.parents[node - 1]], nodes.tokens[node]))
                nodes.written[node] = first + len(listed)
            new.append(listed)
        rows = passes.run([orders[index].cached for index in taking_part], new, ROW_WIDTH)
        for index, top in zip(taking_part, rows, strict=True):
            asked[index] = _take(orders[index], drawn[index], asked[index], top)
    return [_draft_of(order, nodes) for order, nodes in zip(orders, drawn, strict=True)]


def _take(order: DrawOrder, drawn: _Drawn, asked: Sequence[int], top: TopRows) -> list[int]:
    """Draw the children of nodes; return those of them that have children."""
    for row, node in enumerate(asked):
        drawn.of_node[node] = proposal_of(
            top.token_ids[row], top.logprobs[row], order.temperature, order.most_candidates
        )
        taken: list[int] = []
        for child in (index + 1 for index, parent in enumerate(order.parents) if parent == node):
            entry = _entry(order, drawn.of_node[node], child, taken)
            if entry is None:
                break
            taken.append(entry)
            drawn.tokens[child] = int(drawn.of_node[node].token_ids[entry])
            drawn.proposals[child] = drawn.of_node[node]
    wanted = {*order.parents} & drawn.tokens.keys()
    return sorted(wanted - drawn.of_node.keys())


def _entry(order: DrawOrder, q: Proposal, node: int, taken: Sequence[int]) -> int | None:
    """Draw an entry of q, of which some are taken; None if there is no other."""
    if order.siblings == "none":
        return int(_core.draw(q.probabilities, uniform(order.seed, order.position + node - 1, PROPOSAL_STREAM)))
    number = uniform(order.seed, order.position, TREE_STREAM + node - 1)
    if order.siblings == "independent":
        return int(_core.draw(q.probabilities, number))
    is_left = np.ones(len(q.token_ids), np.bool_)
    is_left[list(taken)] = False
    return int(_core.draw_left(q.probabilities, is_left, number)) if is_left.any() else None


def proposal_of(token_ids: np.ndarray, logprobs: np.ndarray, temperature: float, most: int) -> Proposal:
    """Return q of a row: tempered, cut, and normalised.

    Args:
        token_ids: the most probable tokens, best first, shape ``[width]``.
        logprobs: theirs, the same shape.
        temperature: 0 leaves the most probable token alone.
        most: most tokens that are left.
    """
    count = 1 if temperature == 0.0 else min(most, len(token_ids))
    weights = np.exp((logprobs[:count] - logprobs[0]) / (temperature or 1.0))
    probabilities = (weights / weights.sum()).astype(np.float32)
    kept = np.flatnonzero(probabilities)
    order = kept[np.argsort(token_ids[kept])]
    return Proposal(token_ids[order].astype(np.uint32), np.ascontiguousarray(probabilities[order]))


def _draft_of(order: DrawOrder, drawn: _Drawn) -> Draft:
    nodes = sorted(drawn.tokens)
    indices = {0: 0} | {node: index for index, node in enumerate(nodes, start=1)}
    return Draft(
        token_ids=tuple(drawn.tokens[node] for node in nodes),
        parents=tuple(indices[order.parents[node - 1]] for node in nodes),
        proposals=tuple(drawn.proposals[node] for node in nodes),
        strategy="model",
    )
