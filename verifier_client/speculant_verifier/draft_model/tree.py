"""A draft tree whose node probabilities change as the model expands nodes.

The tree starts with the n-gram draft, or empty if there is none. The children of an expanded node come from the n-grams
and from the model, and their probabilities are mixed. One pass of the model expands several nodes. After the last pass,
the most probable nodes are drafted, as in SpecExec's search (Svirschevski et al. 2024, algorithm 2; see
``native/tree_drafter.cpp``).

N-grams provide candidates with calibrated probabilities, and the model provides its most probable tokens. The two
probabilities are interpolated, as the calibrated drafter interpolates the probabilities of contexts: P(x) = s
P_model(x) + (1 - s) P_ngrams(x). Each pair of confidence classes, one for the n-grams and one for the model, has its
own weight s. The weight s is learned online by expectation-maximisation (Jelinek and Mercer 1980). When the true token
is known, each source is credited with the probability that the token came from it. A table of bins then calibrates
P(x): it maps P(x) to the hit rate of earlier candidates that had about this probability.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from speculant_graph.strategies import StrategyName
from speculant_graph.types import Draft, DraftSourceName, TokenId

_CONFIDENCES = (1e-9, 0.25, 0.5, 0.75, 0.9, 0.97)
"""Lower bounds of the confidence classes into which a source's candidates fall. A source's confidence is the
probability of its best candidate; a confidence below the first bound means that there is no candidate."""
_CLASSES = len(_CONFIDENCES) + 1
_UNSEEN = 1e-4
"""Assumed probability of a token that a source does not propose."""
_SHARE_MEMORY, _BIN_MEMORY, _RIGHT_MEMORY = 0.998, 0.998, 0.97
_SHARE_PRIOR, _BIN_PRIOR, _RIGHT_PRIOR = 4.0, 5.0, 4.0
_HALF_OCTAVES = 20
_SMALLEST = 2.0**-10
"""Probability at or below which a candidate is dropped."""

Candidate = tuple[TokenId, float]


class Features(NamedTuple):
    """Features of a node, which predict the gain of expanding it."""

    is_root: bool
    confidence: float
    """Confidence at the node: for the root, the model's recent hit rate in this sequence; for other nodes, the
    probability given the parent."""


class Mixed(NamedTuple):
    """A candidate token with its mixture probability and its source."""

    token_id: TokenId
    probability: float
    source: DraftSourceName


class Reliability:
    """Learns how reliable a model is at nodes with given features; mixes its candidates with the n-grams'."""

    def __init__(self) -> None:
        """Start with equal weights for the model and the n-grams where both have candidates."""
        self._shares = [[_SHARE_PRIOR, 0.5 * _SHARE_PRIOR] for _ in range(_CLASSES * _CLASSES)]
        for confidence in range(_CLASSES):
            self._shares[confidence] = [_SHARE_PRIOR, 0.9 * _SHARE_PRIOR]  # no n-gram candidates
        self._bins = [[0.0, 0.0, 0.0] for _ in range(_HALF_OCTAVES * 4)]
        # By features: number of visits, and how often the model was right. The prior assumes a good model.
        self._model = [
            [_RIGHT_PRIOR, (0.4 + 0.6 * confidence) * _RIGHT_PRIOR]
            for _ in range(2)
            for confidence in (0.0, *_CONFIDENCES)
        ]
        # By features and the n-grams' confidence: how often the next token was drafted.
        self._mixed = [[0.0, 0.0] for _ in range(len(self._model) * _CLASSES)]

    def mix(self, ngrams: Sequence[Candidate], row: Sequence[Candidate]) -> list[Mixed]:
        """Return the mixed candidates of the n-grams and the model, the most probable first.

        Args:
            ngrams: calibrated candidates, best first; may be empty.
            row: the model's most probable tokens, best first.
        """
        mixed = [
            Mixed(each.token_id, self._calibrated(each.probability, kind), each.source)
            for each, kind in self._interpolated(ngrams, row)
        ]
        return sorted((each for each in mixed if each.probability > _SMALLEST), key=lambda each: -each.probability)

    def learn(
        self,
        ngrams: Sequence[Candidate],
        row: Sequence[Candidate],
        token_id: TokenId,
        features: Features,
        *,
        is_drafted: bool,
    ) -> bool:
        """Learn from the token that followed an expanded node.

        Args:
            ngrams: candidates of the n-grams, best first; may be empty.
            row: candidates of the model, best first.
            token_id: the token that followed.
            features: features of the node.
            is_drafted: whether the token was drafted after the node.

        Returns:
            Whether the model had ranked the token first.
        """
        is_right = bool(row) and row[0][0] == token_id
        kind = _kind_of(features)
        for counts, was_right in (
            (self._model[kind], is_right),
            (self._mixed[kind * _CLASSES + _class_of(ngrams)], is_drafted),
        ):
            counts[0] = counts[0] * _RIGHT_MEMORY + 1.0
            counts[1] = counts[1] * _RIGHT_MEMORY + was_right
        for each, support in self._interpolated(ngrams, row):
            if each.probability > _SMALLEST:
                counts = self._bins[_bin_of(each.probability, support)]
                counts[0] = counts[0] * _BIN_MEMORY + 1.0
                counts[1] = counts[1] * _BIN_MEMORY + each.probability
                counts[2] = counts[2] * _BIN_MEMORY + (each.token_id == token_id)
        share = self._shares[_class_of(ngrams) * _CLASSES + _class_of(row)]
        ours = share[1] / share[0]
        of_model = ours * dict(row).get(token_id, _UNSEEN)
        of_ngrams = (1.0 - ours) * dict(ngrams).get(token_id, _UNSEEN)
        share[0] = share[0] * _SHARE_MEMORY + 1.0
        share[1] = share[1] * _SHARE_MEMORY + of_model / (of_model + of_ngrams)
        return is_right

    def gain(self, ngrams: Sequence[Candidate], features: Features) -> float:
        """Return by how much expanding a node should raise the probability that the next token is drafted."""
        kind = _kind_of(features)
        before = min(1.0, sum(probability for _, probability in ngrams))
        visits, hits = self._model[kind]
        expected = max(before, hits / visits)
        visits, hits = self._mixed[kind * _CLASSES + _class_of(ngrams)]
        after = (hits + _RIGHT_PRIOR * expected) / (visits + _RIGHT_PRIOR)
        return max(0.0, after - before)

    def _interpolated(self, ngrams: Sequence[Candidate], row: Sequence[Candidate]) -> list[tuple[Mixed, int]]:
        share = self._shares[_class_of(ngrams) * _CLASSES + _class_of(row)]
        ours = share[1] / share[0]
        known = dict(ngrams)
        mixed = []
        for rank, (token_id, probability) in enumerate(row):
            of_ngrams = known.pop(token_id, None)
            both = of_ngrams is not None
            kind = 1 if both else 2 if rank == 0 else 3
            total = ours * probability + (1.0 - ours) * (of_ngrams or 0.0)
            mixed.append((Mixed(token_id, min(1.0, total), "both" if both else "model"), kind))
        mixed += [
            (Mixed(token_id, min(1.0, (1.0 - ours) * probability), "ngrams"), 0)
            for token_id, probability in known.items()
        ]
        return mixed

    def _calibrated(self, probability: float, kind: int) -> float:
        if probability <= _SMALLEST:
            return 0.0
        visits, expected, hits = self._bins[_bin_of(probability, kind)]
        # Scale the rarer outcome, so that 0.99 and 0.9 stay distinct within one bin.
        if probability <= 0.5:
            return min(1.0, probability * (hits + _BIN_PRIOR) / (expected + _BIN_PRIOR))
        misses = (1.0 - probability) * (visits - hits + _BIN_PRIOR) / (visits - expected + _BIN_PRIOR)
        return max(0.0, 1.0 - misses)


def _class_of(candidates: Sequence[Candidate]) -> int:
    return bisect_right(_CONFIDENCES, candidates[0][1]) if candidates else 0


def _kind_of(features: Features) -> int:
    return features.is_root * _CLASSES + bisect_right(_CONFIDENCES, features.confidence)


def _bin_of(probability: float, kind: int) -> int:
    return min(_HALF_OCTAVES - 1, int(-2.0 * math.log2(probability))) * 4 + kind


@dataclass(eq=False, slots=True)
class Node:
    """A node of the tree; the root is the last token of the sequence."""

    token_id: TokenId
    parent: int
    """Index of the parent in :attr:`DraftTree.nodes`; -1 for the root."""
    depth: int
    conditional: float
    """Probability of the node given its parent; for the root, the model's recent hit rate."""
    source: DraftSourceName = "ngrams"
    path: float = 1.0
    """Probability of the path from the root to this node."""
    ngrams_index: int = 0
    """Index of the node in the n-gram draft, counted from 1; 0 if the n-gram draft lacks the node."""
    written: int = -1
    """Number by which the model's passes refer to the node as a parent; -1 if the model has not expanded the node."""
    children: list[int] = field(default_factory=list)
    row: Sequence[Candidate] = ()
    """The model's candidates for the node's children, best first."""
    ngrams: Sequence[Candidate] = ()
    """The n-grams' candidates for the node's children, best first."""


class DraftTree:
    """Draft tree of one sequence in one step."""

    def __init__(self, draft: Draft, confidence: float = 0.5) -> None:
        """Start the tree with the n-gram draft.

        Args:
            draft: nodes of the n-gram draft and their path probabilities.
            confidence: the model's recent hit rate in this sequence.
        """
        self.nodes = [Node(-1, -1, 0, confidence)]
        self.drafted: frozenset[int] = frozenset()
        """Indices of the nodes in the final draft."""
        for index, (token_id, parent) in enumerate(zip(draft.token_ids, draft.parents, strict=True), start=1):
            path = draft.path_probabilities[index - 1] if draft.path_probabilities else 0.5
            above = self.nodes[parent]
            node = Node(token_id, parent, above.depth + 1, path / above.path if above.path else 0.0, path=path)
            node.ngrams_index = index
            above.children.append(index)
            self.nodes.append(node)
        for node in self.nodes:
            node.ngrams = self._candidates(node)

    def _candidates(self, node: Node) -> list[Candidate]:
        found = [(self.nodes[child].token_id, self.nodes[child].conditional) for child in node.children]
        return sorted(found, key=lambda candidate: -candidate[1])

    def open_nodes(self, reliability: Reliability, chosen: Sequence[int], max_depth: int) -> list[tuple[int, float]]:
        """Return the unexpanded nodes whose children may be drafted, parents first.

        Args:
            reliability: predicts the gain of an expansion.
            chosen: the most probable nodes, as many as may be drafted. Only chosen nodes are expanded, because children
                of other nodes are less probable than the chosen nodes.
            max_depth: depth at which nodes may not have children.

        Returns:
            Pairs of a node and the expected number of additional accepted tokens if the node is expanded.
        """
        return [
            (index, node.path * reliability.gain(node.ngrams, self._features(index)))
            for index in (0, *chosen)
            if (node := self.nodes[index]).written < 0 and node.depth < max_depth
        ]

    def expand(self, index: int, row: Sequence[Candidate], reliability: Reliability, max_branches: int) -> None:
        """Add the model's candidates as children of a node; :meth:`update` must be called afterwards."""
        node = self.nodes[index]
        node.row = row
        for token_id, probability, source in self.mix_in(index, row, reliability, max_branches):
            node.children.append(len(self.nodes))
            self.nodes.append(Node(token_id, index, node.depth + 1, probability, source))

    def mix_in(self, index: int, row: Sequence[Candidate], reliability: Reliability, max_branches: int) -> list[Mixed]:
        """Set the mixture probabilities of a node's children; return candidates that are not children yet."""
        node = self.nodes[index]
        known = {self.nodes[child].token_id: child for child in node.children}
        mixed = reliability.mix(node.ngrams, row)
        added = [each for each in mixed[:max_branches] if each.token_id not in known]
        found = {each.token_id: each for each in mixed}
        kept = {each.token_id for each in mixed[:max_branches]}
        for token_id, child in known.items():
            self.nodes[child].conditional = found[token_id].probability if token_id in found else 0.0
            if token_id in kept:
                self.nodes[child].source = found[token_id].source
        return added

    def update(self) -> None:
        """Recompute the path probabilities of all nodes after a pass."""
        for node in self.nodes[1:]:
            node.path = self.nodes[node.parent].path * node.conditional

    def best(self, most: int) -> list[int]:
        """Return the most probable nodes, except the root; parents come before their children."""
        ranked = sorted(range(1, len(self.nodes)), key=lambda index: (-self.nodes[index].path, index))
        chosen: list[int] = []
        kept = {0}
        for index in ranked[:most]:
            if self.nodes[index].path > 0.0 and self.nodes[index].parent in kept:
                kept.add(index)
                chosen.append(index)
        return chosen

    def write(self, chosen: Sequence[int], first: int) -> list[tuple[int, TokenId]]:
        """Mark nodes as expanded; return them, except the root, as (parent, token) pairs for the model's passes.

        Args:
            chosen: nodes, parents before their children.
            first: number of nodes that earlier passes of this step have added to the KV cache.
        """
        new: list[tuple[int, TokenId]] = []
        for index in chosen:
            node = self.nodes[index]
            if index:
                new.append((self.nodes[node.parent].written, node.token_id))
            node.written = first + len(new) if index else 0
        return new

    def draft(self, chosen: Sequence[int], strategy: StrategyName, draft_id: int) -> Draft:
        """Return the chosen nodes as a draft."""
        self.drafted = frozenset(chosen)
        positions = {0: 0} | {index: position for position, index in enumerate(chosen, start=1)}
        nodes = [self.nodes[index] for index in chosen]
        return Draft(
            token_ids=tuple(node.token_id for node in nodes),
            parents=tuple(positions[node.parent] for node in nodes),
            path_probabilities=tuple(node.path for node in nodes),
            sources=tuple(node.source for node in nodes),
            strategy=strategy,
            draft_id=draft_id,
        )

    def learn(self, emitted: Sequence[TokenId], reliability: Reliability) -> list[bool]:
        """Learn from the tokens that followed expanded nodes.

        Returns:
            For every expanded node on the emitted path, whether the model's most probable token came next.
        """
        index, found = 0, []
        for token_id in emitted:
            node, child = self.nodes[index], self._child(index, token_id)
            if node.row:
                is_drafted = child in self.drafted
                found.append(
                    reliability.learn(node.ngrams, node.row, token_id, self._features(index), is_drafted=is_drafted)
                )
            if child < 0:
                break
            index = child
        return found

    def num_followed(self, emitted: Sequence[TokenId], nodes: Container[int]) -> int:
        """Return the number of emitted tokens that a draft of the given nodes would have matched."""
        index = 0
        for count, token_id in enumerate(emitted):
            index = self._child(index, token_id)
            if index not in nodes:
                return count
        return len(emitted)

    def _features(self, index: int) -> Features:
        return Features(index == 0, self.nodes[index].conditional)

    def _child(self, index: int, token_id: TokenId) -> int:
        children = self.nodes[index].children
        return next((child for child in children if self.nodes[child].token_id == token_id), -1)
