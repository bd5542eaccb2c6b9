"""The slow and obvious drafting of chains and sampled trees, which kernels are held against; for tests."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from speculant_graph.config import DraftConfig
from speculant_graph.random_stream import TREE_STREAM, uniform
from speculant_graph.types import SiblingsName
from support.oracle import OracleGraph, draw

SIBLING_PRICE = 2
"""What a further child of a node costs, where a first one costs 1."""
Distribution = dict[int, float]
"""Probabilities by ascending token id."""


@dataclass(frozen=True, slots=True)
class DrawnNode:
    """A node of a sampled tree."""

    parent: int
    """0 for the root."""
    token_id: int
    q: Distribution
    """What the token was drawn from."""
    sequence: list[int]
    """The context, and the path to the node."""
    order: int
    """Of the context that the token was drawn from, which slides on."""
    depth: int = 0
    price: int = 0


def draft_chain(
    graph: OracleGraph, config: DraftConfig, context: Sequence[int], seed: int = 0
) -> tuple[list[int], list[Distribution]]:
    """Draft by ``greedy`` or ``sampling``; return the tokens, and q of each where it was drawn."""
    draft_tokens, distributions = graph.draft(
        context, config.k, config.strategy, seed, config.max_candidates, config.coupling, config.temperature
    )
    return draft_tokens, distributions if config.strategy == "sampling" else []


def draft_sampled_tree(
    graph: OracleGraph, config: DraftConfig, context: Sequence[int], siblings: SiblingsName, seed: int = 0
) -> list[DrawnNode]:
    """Draw a tree as :mod:`speculant_graph.draft.sampled_tree` says."""
    nodes = [DrawnNode(-1, -1, {}, list(context), min(graph.max_order, len(context)))]  # the root is none of the tree
    while len(nodes) <= config.k:
        places = []
        for number, node in enumerate(nodes):
            order, q = successors(graph, config, node)
            children = [child for child in nodes if child.parent == number]
            most = min(config.max_branches, len(q) if siblings == "without-replacement" or len(q) == 1 else 64)
            is_twin = any((node.parent, node.token_id) == (other.parent, other.token_id) for other in nodes[:number])
            if q and len(children) < most and node.depth < config.max_depth and not is_twin:
                places.append((node.price + 1 + SIBLING_PRICE * len(children), number, order, q, children))
        if not places:
            break
        price, number, order, q, children = min(places, key=lambda place: place[:2])
        left = dict(q)
        if siblings == "without-replacement":
            for child in children:
                del left[child.token_id]
        quantile = uniform(seed, len(context), TREE_STREAM + len(nodes) - 1)
        token_id = draw(left, added(left.values()) * quantile)
        parent = nodes[number]
        nodes.append(DrawnNode(number, token_id, q, [*parent.sequence, token_id], order, parent.depth + 1, price))
    return nodes[1:]


def successors(graph: OracleGraph, config: DraftConfig, node: DrawnNode) -> tuple[int, Distribution]:
    """Return q at a node, and the order of the context that it is of; nothing if no context is known."""
    window = tuple(node.sequence[-node.order :]) if node.order else ()
    if window not in graph.context_index:
        window = graph.longest_context(node.sequence) or ()
    return len(window), graph.distribution(window, config.max_candidates, config.temperature) if window else {}


def added(numbers: Iterable[float]) -> float:
    """Add one after another as kernels do; ``sum`` makes up for rounding since Python 3.12."""
    return functools.reduce(operator.add, numbers, 0.0)
