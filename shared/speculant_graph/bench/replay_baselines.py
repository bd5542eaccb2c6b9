"""What a replay's strategies are measured against: drafting without a graph, as inference libraries bring it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from speculant_graph.types import EMPTY_DRAFT, Draft, TokenId

if TYPE_CHECKING:
    from speculant_graph.draft.cost import CostCurve
    from speculant_graph.draft.session_drafter import DraftOrder

PROMPT_LOOKUP = "prompt-lookup"
"""Name of the strategy in results."""

_LONGEST_NGRAM = 3


class PromptLookupDrafter:
    """Copies what followed the first earlier place with the same last tokens (Saxena 2023, prompt lookup decoding).

    The longest of the last 3, 2, 1 tokens that occurred before decides. It learns nothing across sequences and knows
    no cost.
    """

    def __init__(self) -> None:
        """Begin without sequences."""
        self._tokens: dict[int, list[TokenId]] = {}
        self._next_places: dict[int, dict[tuple[TokenId, ...], int]] = {}

    def open(self, session_id: int, *, tenant: str = "", learn: bool = False, cost: CostCurve | None = None) -> None:
        """Begin a sequence."""
        self._tokens[session_id] = []
        self._next_places[session_id] = {}

    def accept(self, session_id: int, token_ids: Sequence[TokenId]) -> None:
        """Add tokens to the sequence."""
        tokens, next_places = self._tokens[session_id], self._next_places[session_id]
        for token_id in token_ids:
            tokens.append(token_id)
            for length in range(1, min(_LONGEST_NGRAM, len(tokens)) + 1):
                next_places.setdefault(tuple(tokens[-length:]), len(tokens))

    def recycle(self, session_id: int, nodes: Sequence[int], rows: Sequence[Sequence[TokenId]]) -> None:
        """Take the target's top tokens, which this strategy has no use for."""

    def draft(self, orders: Sequence[DraftOrder]) -> list[Draft]:
        """Draft a chain for each order."""
        return [self._draft(order.session_id, order.node_budget) for order in orders]

    def close(self, session_id: int) -> None:
        """Forget the sequence."""
        del self._tokens[session_id], self._next_places[session_id]

    def _draft(self, session_id: int, node_budget: int) -> Draft:
        tokens, next_places = self._tokens[session_id], self._next_places[session_id]
        for length in range(min(_LONGEST_NGRAM, len(tokens)), 0, -1):
            start = next_places[tuple(tokens[-length:])]
            if start < len(tokens):
                copied = tuple(tokens[start : start + node_budget])
                return Draft(copied, tuple(range(len(copied))), terminated_early=len(copied) < node_budget)
        return EMPTY_DRAFT
