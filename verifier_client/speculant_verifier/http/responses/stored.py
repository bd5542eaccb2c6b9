"""Responses that later ones may go on from: in memory, the latest ones, each only for its tenant."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from speculant_verifier.http.errors import ApiError
from speculant_verifier.http.responses.schemas import Item

_MOST_CHARACTERS = 64_000_000
"""Of all items together, as JSON; the oldest go."""


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """What a response was about."""

    items: tuple[Item, ...]
    """All of its conversation, its own output included."""
    conversation: str
    """What its requests are known by to drafters."""
    size: int
    """Characters."""


class ResponseStore:
    """Belongs to the event loop."""

    def __init__(self, most_characters: int = _MOST_CHARACTERS) -> None:
        """Begin empty.

        Args:
            most_characters: bound of what is kept.
        """
        self._most, self._size = most_characters, 0
        self._kept: OrderedDict[tuple[str, str], StoredResponse] = OrderedDict()

    def put(self, tenant: str, response_id: str, items: Sequence[Item], conversation: str) -> None:
        """Keep a response that has ended.

        Args:
            tenant: whose it is.
            response_id: what later requests name it by.
            items: its conversation.
            conversation: see :class:`StoredResponse`.
        """
        size = sum(len(item.model_dump_json(exclude_unset=True)) for item in items)
        self._kept[tenant, response_id] = StoredResponse(tuple(items), conversation, size)
        self._size += size
        while self._size > self._most:
            _, oldest = self._kept.popitem(last=False)
            self._size -= oldest.size

    def get(self, tenant: str, response_id: str) -> StoredResponse:
        """Return a response.

        Raises:
            ApiError: there is none, or no longer.
        """
        if (stored := self._kept.get((tenant, response_id))) is None:
            raise ApiError(
                400,
                "previous_response_id is not known, or no longer: responses are kept in memory, those with store = "
                "true; send the whole conversation as input",
                param="previous_response_id",
                code="previous_response_not_found",
            )
        return stored
