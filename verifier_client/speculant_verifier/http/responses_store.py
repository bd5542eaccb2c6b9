"""Stores responses in memory, so that later requests can continue them, and signs reasoning that clients store."""

from __future__ import annotations

import base64
import binascii
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from speculant_graph.errors import ApiError
from speculant_graph.serving.access import Principal
from speculant_verifier.http.responses_schemas import Item

_MAX_CHARACTERS = 64_000_000
"""Maximum total size of all stored items as JSON, in characters."""
_VERSION = "s1"


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A finished response."""

    tenant: str
    """Tenant to which the response belongs."""
    items: tuple[Item, ...]
    """All items of the response's conversation, including the response's output."""
    answer: dict[str, Any]
    """JSON object of the response, as sent to the client."""
    num_output: int
    """Number of items at the end of ``items`` that are the response's output."""
    size: int
    """Size of the items as JSON, in characters."""


class ResponseStore:
    """Keeps the latest conversations in memory, each for its tenant only.

    This class must be used only in the event loop.
    """

    def __init__(self, max_characters: int = _MAX_CHARACTERS) -> None:
        """Begin empty.

        Args:
            max_characters: maximum number of stored characters; the oldest responses are dropped first.
        """
        self._capacity = max_characters
        self._kept: OrderedDict[str, StoredResponse] = OrderedDict()
        self._of_item: dict[str, str] = {}  # id of the response that an output item belongs to

    def put(self, tenant: str, answer: dict[str, Any], items: Sequence[Item]) -> None:
        """Store a finished response.

        Args:
            tenant: tenant of the response.
            answer: JSON object of the response, as sent to the client.
            items: all items of the conversation before the response's output.
        """
        output = [Item(**item) for item in answer["output"]]
        whole = (*items, *output)
        size = sum(len(item.model_dump_json(exclude_unset=True)) for item in whole)
        self._kept[answer["id"]] = StoredResponse(tenant, whole, answer, len(output), size)
        self._of_item |= {item.id: answer["id"] for item in output if item.id is not None}
        self._capacity -= size
        while self._capacity < 0:
            self._forget(next(iter(self._kept)))

    def conversation(self, tenant: str, response_id: str) -> tuple[Item, ...]:
        """Return the items of a response's conversation.

        Raises:
            ApiError: the response is not stored for this tenant.
        """
        kept = self._kept.get(response_id)
        if kept is None or kept.tenant != tenant:
            raise ApiError(
                "previous_response_not_found",
                "{field} is unknown or expired: responses are kept in memory, unless store is false",
                fix="send the whole conversation as input",
                field="previous_response_id",
            )
        return kept.items

    def item(self, tenant: str, item_id: str) -> Item | None:
        """Return an output item of an earlier response; None if it is not stored for this tenant."""
        kept = self._kept.get(self._of_item.get(item_id, ""))
        if kept is None or kept.tenant != tenant:
            return None
        return next((item for item in kept.items[-kept.num_output :] if item.id == item_id), None)

    def response(self, principal: Principal, response_id: str) -> StoredResponse:
        """Return a response that belongs to one of the client's tenants.

        Raises:
            ApiError: the response is not stored.
        """
        kept = self._kept.get(response_id)
        if kept is None or not principal.owns_tenant(kept.tenant):
            message = "this response does not exist or has expired: responses are kept in memory, unless store is false"
            raise ApiError("response_not_found", message, fix="ask for another", field="response_id")
        return kept

    def delete(self, principal: Principal, response_id: str) -> None:
        """Delete a response.

        Raises:
            ApiError: the response is not stored.
        """
        self.response(principal, response_id)
        self._forget(response_id)

    def _forget(self, response_id: str) -> None:
        kept = self._kept.pop(response_id)
        self._capacity += kept.size
        for item in kept.items[len(kept.items) - kept.num_output :]:
            self._of_item.pop(item.id or "", None)


class Seal:
    """Signs reasoning, so that clients can store it and send it back but can't forge it.

    Each process draws its own key, and rejects reasoning that another process sealed. The seal does not keep reasoning
    secret, because reasoning is also returned as plain text.
    """

    def __init__(self) -> None:
        """Draw a key."""
        self._key = secrets.token_bytes(32)

    def closed(self, tenant: str, reasoning: str) -> str:
        """Return sealed reasoning, which :meth:`opened` accepts only for the same tenant."""
        content = reasoning.encode(errors="replace")
        return f"{_VERSION}.{base64.urlsafe_b64encode(self._sign(tenant, content) + content).decode()}"

    def opened(self, tenant: str, sealed: str) -> str | None:
        """Return the reasoning in a sealed text; None if this process did not seal it for this tenant."""
        version, _, text = sealed.partition(".")
        if version != _VERSION:
            return None
        try:
            content = base64.b64decode(text.encode("ascii"), altchars=b"-_", validate=True)
        except (ValueError, binascii.Error):
            return None
        signature, content = content[:32], content[32:]
        return content.decode() if hmac.compare_digest(signature, self._sign(tenant, content)) else None

    def _sign(self, tenant: str, content: bytes) -> bytes:
        return hmac.digest(self._key, len(tenant.encode()).to_bytes(4) + tenant.encode() + content, "sha256")
