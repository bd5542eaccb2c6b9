"""Slow reference for graphs and for drafts from them, over dictionaries and one token at a time."""

from __future__ import annotations

import functools
import math
import operator
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from speculant_graph.config import DraftConfig
from speculant_graph.random_stream import PROPOSAL_STREAM, TREE_STREAM, uniform
from speculant_graph.strategies import StrategyName
from speculant_graph.types import CouplingName, SiblingsName
from support.noise import gumbel_noise

SIBLING_PRICE = 2
"""Cost of each further child of a node; the first child costs 1."""
Distribution = dict[int, float]
"""Probability of each token, by ascending token id."""


class OracleGraph:
    """Counts of all n-grams, in dictionaries; for tests with short texts."""

    def __init__(self, documents: Sequence[Sequence[int]], max_order: int, min_count: int = 1) -> None:
        """Count every n-gram of 1 to ``max_order + 1`` tokens that lies within a document.

        Args:
            documents: token ids of each document; a single document if n-grams may cross document boundaries.
            max_order: length of the longest context.
            min_count: rarer n-grams are removed.
        """
        self.max_order = max_order
        self.ngram_counts: Counter[tuple[int, ...]] = Counter()
        self.context_index: defaultdict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
        for token_ids in documents:
            for length in range(1, max_order + 2):
                for start in range(len(token_ids) - length + 1):
                    self.ngram_counts[tuple(token_ids[start : start + length])] += 1
        for ngram, count in list(self.ngram_counts.items()):
            if count < min_count:
                del self.ngram_counts[ngram]
            elif len(ngram) > 1:
                self.context_index[ngram[:-1]][ngram[-1]] = count
        self.context_index.default_factory = None

    def longest_context(self, context: Sequence[int]) -> tuple[int, ...] | None:
        """Return the longest known suffix of ``context``; None if there is none."""
        for order in range(min(self.max_order, len(context)), 0, -1):
            if tuple(context[-order:]) in self.context_index:
                return tuple(context[-order:])
        return None

    def draft(
        self,
        prompt: Sequence[int],
        k: int,
        strategy: StrategyName,
        seed: int = 0,
        max_candidates: int = 0,
        coupling: CouplingName = "none",
        temperature: float = 1.0,
    ) -> tuple[list[int], list[dict[int, float]]]:
        """Draft a chain by the loops of the requirements; return its tokens and the q of each.

        Args:
            prompt: the context.
            k: maximum number of tokens.
            strategy: ``greedy`` takes the most frequent successor; any other strategy samples.
            seed: random seed.
            max_candidates: maximum number of tokens of q; 0: all.
            coupling: ``gumbel`` samples with Gumbel noise.
            temperature: of q.
        """
        draft_tokens: list[int] = []
        distributions: list[dict[int, float]] = []
        current_context = list(prompt)
        while len(draft_tokens) < k:
            matched = False
            # A context shorter than the largest order starts at its own length.
            for order in range(min(self.max_order, len(current_context)), 0, -1):
                context_ngram = tuple(current_context[-order:])
                if context_ngram in self.context_index:
                    matched = True
                    while len(draft_tokens) < k:
                        distribution = self.distribution(context_ngram, max_candidates, temperature)
                        if strategy == "greedy":
                            successors = self.context_index[context_ngram]
                            next_token = min(successors, key=lambda token: (-successors[token], token))
                        elif coupling == "gumbel":
                            next_token = draw_coupled(distribution, seed, len(current_context))
                        else:
                            number = uniform(seed, len(current_context), PROPOSAL_STREAM)
                            next_token = draw(distribution, number)
                        draft_tokens.append(next_token)
                        distributions.append(distribution)
                        current_context.append(next_token)
                        context_ngram = tuple(current_context[-order:])
                        if context_ngram not in self.context_index:
                            break
                    break
            if not matched:
                break
        return draft_tokens, distributions

    def distribution(
        self, context: tuple[int, ...], max_candidates: int = 0, temperature: float = 1.0
    ) -> dict[int, float]:
        """Return q by ascending token id, as float32 values: the most frequent successors, renormalized."""
        return normalised(tempered(self.context_index[context], temperature), max_candidates)


def tempered(weights: Mapping[int, float], temperature: float) -> Mapping[int, float]:
    """Return weights to the power of 1 / temperature, scaled so that the largest is 1."""
    if temperature == 1.0:
        return weights
    largest = max(weights.values())
    return {token: (weight / largest) ** (1.0 / temperature) for token, weight in weights.items()}


def normalised(weights: Mapping[int, float], max_candidates: int) -> dict[int, float]:
    """Return a distribution over the largest weights, as float32 values; among equals, lower ids come first."""
    kept = sorted(sorted(weights, key=lambda token: (-weights[token], token))[: max_candidates or None])
    total = 0.0
    for token in kept:  # plain addition, as in the core; ``sum`` compensates for rounding since Python 3.12
        total += weights[token]
    shares = {token: float(np.float32(weights[token] / total)) for token in kept}
    return {token: share for token, share in shares.items() if share > 0.0}


def draw(distribution: dict[int, float], number: float) -> int:
    """Return the first token whose cumulative probability exceeds ``number``, or the last one."""
    cumulative = 0.0
    for token, probability in distribution.items():
        cumulative += probability
        if cumulative > number:
            return token
    return token


def draw_coupled(distribution: dict[int, float], seed: int, position: int) -> int:
    """Return the token with the largest log probability plus Gumbel noise; among equals, the lowest id."""

    def score(token: int) -> float:
        return math.log(distribution[token]) + float(gumbel_noise(seed, position, np.array([token]))[0])

    return max(distribution, key=score)


@dataclass(frozen=True, slots=True)
class DrawnNode:
    """A node of a sampled tree."""

    parent: int
    """0 for the root."""
    token_id: int
    q: Distribution
    """The distribution that the token was sampled from."""
    sequence: list[int]
    """The context, followed by the path to the node."""
    order: int
    """Length of the n-gram context that the token was sampled from; its children try the same length first."""
    depth: int = 0
    price: int = 0


def draft_sampled_tree(
    graph: OracleGraph, config: DraftConfig, context: Sequence[int], siblings: SiblingsName, seed: int = 0
) -> list[DrawnNode]:
    """Sample a tree by the rules of :mod:`speculant_graph.draft.sampled_tree`."""
    nodes = [DrawnNode(-1, -1, {}, list(context), min(graph.max_order, len(context)))]  # root
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
    """Return the length of the context used at a node, and its q; 0 and an empty q if no context is known."""
    window = tuple(node.sequence[-node.order :]) if node.order else ()
    if window not in graph.context_index:
        window = graph.longest_context(node.sequence) or ()
    return len(window), graph.distribution(window, config.max_candidates, config.temperature) if window else {}


def added(numbers: Iterable[float]) -> float:
    """Add numbers one by one, as in the core; ``sum`` compensates for rounding since Python 3.12."""
    return functools.reduce(operator.add, numbers, 0.0)
