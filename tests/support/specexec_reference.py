"""Slow reference for SpecExec's search for the most probable paths, and a draft model that is a table.

SpecExec is Svirschevski et al. 2024; Algorithm 2 below is theirs.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import numpy as np

from speculant_graph.types import TokenId
from speculant_verifier.draft_model.passes import DraftPasses, TopRows
from speculant_verifier.model import TargetModel

Path = tuple[TokenId, ...]
Says = Callable[[Path], Sequence[tuple[TokenId, float]]]
"""Returns the tokens after a path with their probabilities, most probable first."""


def most_probable(found: dict[Path, float], num_nodes: int) -> list[Path]:
    """Return the most probable paths; among equals, the ones found first."""
    return sorted((path for path in found if path and found[path] > 0.0), key=lambda path: -found[path])[:num_nodes]


def grown_tree(says: Says, num_nodes: int, max_depth: int, width: int) -> dict[Path, float]:
    """Run Algorithm 2 in its batches and rounds, keep every path found, and return the best ``num_nodes``."""
    found, asked = {(): 1.0}, set()
    for _ in range(max_depth):
        batch = [
            path for path in [(), *most_probable(found, num_nodes)] if path not in asked and len(path) < max_depth
        ][:width]
        new = []
        for path in batch:
            asked.add(path)
            new += [((*path, token), found[path] * probability) for token, probability in says(path)[:width]]
        found |= dict(sorted(new, key=lambda each: -each[1])[:num_nodes])
    return {path: found[path] for path in most_probable(found, num_nodes)}


def printed_tree(says: Says, num_nodes: int, max_depth: int, width: int) -> dict[Path, float]:
    """Run Algorithm 2 as printed: the draft holds exactly the paths that a round has expanded."""
    tree: dict[Path, float] = {}
    queue = {(): 1.0}
    for _ in range(max_depth):
        batch = sorted(queue, key=lambda path: -queue[path])[:width]
        batch = batch[: num_nodes + 1 - len(tree)]  # the root is no node
        new = []
        for path in batch:
            tree[path] = queue.pop(path)
            new += [((*path, token), tree[path] * probability) for token, probability in says(path)[:width]]
        queue |= dict(sorted(new, key=lambda each: -each[1])[:num_nodes])
    return {path: probability for path, probability in tree.items() if path}


def every_path(says: Says, num_nodes: int, max_depth: int) -> dict[Path, float]:
    """Return the most probable of all paths, by exhaustive enumeration of every level."""
    found, level = {(): 1.0}, {(): 1.0}
    for _ in range(max_depth):
        level = {
            (*path, token): above * probability for path, above in level.items() for token, probability in says(path)
        }
        found |= level
    return {path: found[path] for path in most_probable(found, num_nodes)}


def table(seed: int, vocabulary_size: int, sharpness: float) -> Says:
    """Return a model with a random distribution for every context.

    Probabilities take few distinct values, so that there are ties.

    Args:
        seed: of the random distributions.
        vocabulary_size: number of tokens.
        sharpness: the larger, the more probable the first token.
    """

    def says(path: Path) -> list[tuple[TokenId, float]]:
        generator = random.Random(hash((seed, path)))
        weights = [math.exp(sharpness * generator.randrange(4)) for _ in range(vocabulary_size)]
        ranked = sorted(range(vocabulary_size), key=lambda token: -weights[token])
        return [(token, weights[token] / sum(weights)) for token in ranked]

    return says


class TableRows(TopRows):
    """Rows that return the table's probabilities exactly, without a logarithm in between."""

    @property
    def probabilities(self):
        return self.logprobs.copy()


class TablePasses(DraftPasses):
    """Passes answered from a table, for the path of each node in the cached sequence."""

    def __init__(self, model: TargetModel, says: Sequence[Says]) -> None:
        super().__init__(model, len(says))
        self.says = says
        """The table of each row."""
        self.widths: list[list[int]] = []
        """Number of new nodes per row, for every pass."""

    def run(self, sequences, nodes, width):
        self.widths.append([len(new) for new in nodes])
        answers = []
        for each, new in zip(sequences, nodes, strict=True):
            asked = [] if each.is_written else [()]
            for parent, token in new:
                each.tokens.append(token)
                each.parents.append(parent)
                asked.append(self._path(each, len(each.tokens)))
            rows = [self.says[each.row](path)[:width] for path in asked]
            each.hits = []
            answers.append(
                TableRows(
                    np.array([[token for token, _ in row] for row in rows]),
                    np.array([[probability for _, probability in row] for row in rows]),
                )
            )
        for each in sequences:
            each.is_written = True
        return answers

    @staticmethod
    def _path(sequence, node: int) -> Path:
        path: list[TokenId] = []
        while node:
            path.append(sequence.tokens[node - 1])
            node = sequence.parents[node - 1]
        return tuple(reversed(path))
