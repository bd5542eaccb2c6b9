"""Responses that later requests go on from."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from speculant_verifier.http.errors import ApiError
from speculant_verifier.http.responses_schemas import Item

_MAX_CHARACTERS = 64_000_000
"""Of all items that are kept, as JSON."""


class ResponseStore:
    """Conversations in memory, the latest ones, each for its tenant only. Belongs to the event loop."""

    def __init__(self, max_characters: int = _MAX_CHARACTERS) -> None:
        """Begin empty.

        Args:
            max_characters: bound of what is kept; the oldest go.
        """
        self._capacity = max_characters
        self._kept: OrderedDict[tuple[str, str], tuple[tuple[Item, ...], int]] = OrderedDict()

    def put(self, tenant: str, response_id: str, items: Sequence[Item]) -> None:
        """Keep a response that has ended: all items of its conversation, its own output included."""
        size = sum(len(item.model_dump_json(exclude_unset=True)) for item in items)
        self._kept[tenant, response_id] = tuple(items), size
        self._capacity -= size
        while self._capacity < 0:
            _, (_, oldest) = self._kept.popitem(last=False)
            self._capacity += oldest

    def conversation(self, tenant: str, response_id: str) -> tuple[Item, ...]:
        """Return the items of a response's conversation.

        Raises:
            ApiError: there is none, or no longer.
        """
        if (kept := self._kept.get((tenant, response_id))) is None:
            raise ApiError(
                400,
                "previous_response_id is not known, or no longer: responses are kept in memory, unless store is "
                "false; send the whole conversation as input",
                param="previous_response_id",
                code="previous_response_not_found",
            )
        return kept[0]
