"""Verification rules: how much of a draft the model agrees with. Pure functions of numbers.

The only rule so far is *follow*: the model chooses its own token at every node with random numbers that belong to the
position alone, and the draft is walked while it offers that token. What is emitted never depends on the draft, only
how many tokens one pass emits; greedy decoding is the special case without randomness.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from speculant_graph.types import Draft, TokenId


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one row's pass yields."""

    path: tuple[int, ...]
    """Draft node indices that were accepted, root to leaf."""
    token_ids: tuple[TokenId, ...]
    """Tokens to emit: the accepted ones, then one of the model's own."""


def follow(draft: Draft, choices: Sequence[TokenId]) -> Verdict:
    """Walk the draft while it contains what the model chose.

    Args:
        draft: the proposed tree.
        choices: the model's choice after the root (index 0) and after each draft node (index j+1).

    Returns:
        The accepted path and the emitted tokens; always one more token than accepted nodes.
    """
    children = {
        (parent, token): node for node, (parent, token) in enumerate(zip(draft.parents, draft.token_ids, strict=True))
    }
    path: list[int] = []
    token_ids = [choices[0]]
    position = 0
    while (node := children.get((position, token_ids[-1]))) is not None:
        path.append(node)
        position = node + 1
        token_ids.append(choices[position])
    return Verdict(tuple(path), tuple(token_ids))
