"""Drafts that keep to a form: what it forbids is left out, and what it forces is added."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from speculant_graph.types import Draft, TokenId
from speculant_verifier.structured.constraint import Constraint


def with_forced(constraint: Constraint, token_ids: Sequence[TokenId], draft: Draft, most_nodes: int) -> Draft:
    """Return the draft with what its form forces next, and after its most probable path, as far as its budget allows.

    New nodes come after all others.
    """
    draft = _extended(draft, 0, constraint.forced(token_ids), most_nodes)
    best = 0
    for node, parent in enumerate(draft.parents, start=1):
        if parent == best:
            best = node
    return _extended(draft, best, constraint.forced(token_ids, path_to(draft, best)), most_nodes) if best else draft


def path_to(draft: Draft, node: int) -> list[TokenId]:
    """Return the tokens from below the root to a node; 0 is the root."""
    path: list[TokenId] = []
    while node:
        path.append(draft.token_ids[node - 1])
        node = draft.parents[node - 1]
    return path[::-1]


def _extended(draft: Draft, node: int, token_ids: Sequence[TokenId], most_nodes: int) -> Draft:
    """Return the draft with a path below a node, as much of which as is there already is not added."""
    tokens, parents = list(draft.token_ids), list(draft.parents)
    probabilities, sources = list(draft.path_probabilities), list(draft.sources)
    children = {(parent, token): child for child, (parent, token) in enumerate(zip(parents, tokens, strict=True), 1)}
    for token in token_ids:
        if (node, token) in children:
            node = children[node, token]
            continue
        if len(tokens) >= most_nodes:
            break
        if probabilities or not tokens:
            probabilities.append(probabilities[node - 1] if node else 1.0)
        if sources:
            sources.append("ngrams")
        tokens.append(token)
        parents.append(node)
        node = len(tokens)
    if len(tokens) == len(draft):
        return draft
    return replace(
        draft,
        token_ids=tuple(tokens),
        parents=tuple(parents),
        path_probabilities=tuple(probabilities),
        proposals=(),
        sources=tuple(sources),
    )
