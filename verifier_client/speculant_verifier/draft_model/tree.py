"""A draft tree whose nodes change their probabilities as the model is asked about them.

It begins with the tree that n-grams drafted, or with nothing. After a node was expanded, its children are those of the
n-grams and of the model, with the probabilities of the mixture. The most probable nodes are what is drafted in the
end, as in SpecExec's search (Svirschevski et al. 2024, algorithm 2; see
``native/tree_drafter.cpp``), several nodes a pass.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field

from speculant_graph.types import Draft, DraftSourceName, StrategyName, TokenId
from speculant_verifier.draft_model.reliability import Candidate, Reliability, Situation


@dataclass(eq=False, slots=True)
class Node:
    """One node; the root is the end of the sequence."""

    token_id: TokenId
    parent: int
    """Its index in :attr:`DraftTree.nodes`; -1 for the root."""
    depth: int
    conditional: float
    """Probability after its parent; of the root how often the model was right lately."""
    source: DraftSourceName = "ngrams"
    path: float = 1.0
    """Probability that all tokens down to it follow."""
    ngrams_index: int = 0
    """In the n-grams' draft, from 1; 0 if it is not of it."""
    written: int = -1
    """As a parent in the model's passes; -1 if the model was not asked about it."""
    children: list[int] = field(default_factory=list)
    row: Sequence[Candidate] = ()
    """The model's candidates for its children, best first."""
    ngrams: Sequence[Candidate] = ()
    """The n-grams' candidates for its children, best first."""


class DraftTree:
    """The tree of one sequence in one step."""

    def __init__(self, draft: Draft, sureness: float = 0.5) -> None:
        """Begin with what n-grams drafted.

        Args:
            draft: nodes and their path probabilities.
            sureness: how often the model was right lately in this sequence.
        """
        self.nodes = [Node(-1, -1, 0, sureness)]
        self.drafted: frozenset[int] = frozenset()
        """Nodes that were drafted in the end."""
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
        """Return the nodes that the model was not asked about and whose children may be drafted, parents first.

        Args:
            reliability: predicts what asking brings.
            chosen: the most probable nodes, as many as may be drafted. Children of others are less probable than these.
            max_depth: a node so deep has no children.

        Returns:
            (node, expected further accepted tokens).
        """
        return [
            (index, node.path * reliability.gain(node.ngrams, self._situation(index)))
            for index in (0, *chosen)
            if (node := self.nodes[index]).written < 0 and node.depth < max_depth
        ]

    def expand(self, index: int, row: Sequence[Candidate], reliability: Reliability, max_branches: int) -> None:
        """Take the model's candidates after a node; :meth:`update` then."""
        node = self.nodes[index]
        node.row = row
        known = {self.nodes[child].token_id: child for child in node.children}
        mixed = reliability.mix(node.ngrams, row)
        for token_id, probability, source in mixed[:max_branches]:
            child = known.pop(token_id, None)
            if child is None:
                node.children.append(len(self.nodes))
                self.nodes.append(Node(token_id, index, node.depth + 1, probability, source))
            else:
                self.nodes[child].conditional, self.nodes[child].source = probability, source
        rest = {each.token_id: each.probability for each in mixed}
        for token_id, child in known.items():
            self.nodes[child].conditional = rest.get(token_id, 0.0)

    def update(self) -> None:
        """Work out the probabilities of all paths again, after a pass."""
        for node in self.nodes[1:]:
            node.path = self.nodes[node.parent].path * node.conditional

    def best(self, most: int) -> list[int]:
        """Return the most probable nodes, the root left out; a node never comes before its parent."""
        ranked = sorted(range(1, len(self.nodes)), key=lambda index: (-self.nodes[index].path, index))
        chosen: list[int] = []
        kept = {0}
        for index in ranked[:most]:
            if self.nodes[index].path > 0.0 and self.nodes[index].parent in kept:
                kept.add(index)
                chosen.append(index)
        return chosen

    def write(self, chosen: Sequence[int], first: int) -> list[tuple[int, TokenId]]:
        """Return nodes as a pass of the model takes them, (parent, token), and note that it was asked about them.

        Args:
            chosen: nodes, parents before their children; the root is in no pass.
            first: nodes that passes of this step have written.
        """
        new: list[tuple[int, TokenId]] = []
        for index in chosen:
            node = self.nodes[index]
            if index:
                new.append((self.nodes[node.parent].written, node.token_id))
            node.written = first + len(new) if index else 0
        return new

    def draft(self, chosen: Sequence[int], strategy: StrategyName, draft_id: int) -> Draft:
        """Write nodes as a draft."""
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
        """Learn from the tokens that followed the sequence, as far as the model was asked.

        Returns:
            For every node where it was asked, whether its most probable token was the next one.
        """
        index, found = 0, []
        for token_id in emitted:
            node, child = self.nodes[index], self._child(index, token_id)
            if node.row:
                is_drafted = child in self.drafted
                found.append(
                    reliability.learn(node.ngrams, node.row, token_id, self._situation(index), is_drafted=is_drafted)
                )
            if child < 0:
                break
            index = child
        return found

    def num_followed(self, emitted: Sequence[TokenId], nodes: Container[int]) -> int:
        """Return how many of the tokens that followed some nodes of the tree would have brought."""
        index = 0
        for count, token_id in enumerate(emitted):
            index = self._child(index, token_id)
            if index not in nodes:
                return count
        return len(emitted)

    def _situation(self, index: int) -> Situation:
        return Situation(index == 0, self.nodes[index].conditional)

    def _child(self, index: int, token_id: TokenId) -> int:
        children = self.nodes[index].children
        return next((child for child in children if self.nodes[child].token_id == token_id), -1)
