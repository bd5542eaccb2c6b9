"""Draft trees in tests: their paths, and what a graph alone proposes."""

from __future__ import annotations

from collections.abc import Sequence

from speculant_graph.draft.papers.trees import Propose
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.types import Draft


def paths_of(draft: Draft) -> list[tuple[int, ...]]:
    """Return the tokens of every node's path."""
    paths: list[tuple[int, ...]] = [()]
    for token_id, parent in zip(draft.token_ids, draft.parents, strict=True):
        paths.append((*paths[parent], token_id))
    return paths[1:]


def proposals_of(graph: NgramGraph, context: Sequence[int]) -> Propose:
    """Propose the successors of the longest context that a graph knows, by their share of its counts."""

    def propose(path: tuple[int, ...], limit: int) -> tuple[list[int], list[float]]:
        match = graph.match([*context, *path][-graph.max_order :])
        if match is None:
            return [], []
        successors = graph.successors(match)
        counted = successors.most_common(limit)
        return [token_id for token_id, _ in counted], [count / successors.total for _, count in counted]

    return propose
