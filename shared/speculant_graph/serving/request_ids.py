"""A name for every call, the client's own if it has one, in all messages that the call causes."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from contextlib import AbstractContextManager

from loguru import logger

REQUEST_ID_KEY = "x-request-id"
"""Metadata key in which a client may name its call."""

_SANE = re.compile(r"[A-Za-z0-9._-]{1,64}")


def request_id_of(metadata: Iterable[tuple[str, str | bytes]] | None) -> str:
    """Return the call's id: the client's if it is short and plain, else a random one.

    Args:
        metadata: the call's, as ``ServicerContext.invocation_metadata()`` returns it.
    """
    for key, value in metadata or ():
        if key == REQUEST_ID_KEY and isinstance(value, str) and is_request_id(value):
            return value
    return secrets.token_hex(8)


def is_request_id(text: str) -> bool:
    """Return whether a text of a client's is short and plain enough to stand in messages."""
    return _SANE.fullmatch(text) is not None


def bound_to_messages(request_id: str, **more: str) -> AbstractContextManager[None]:
    """Return a context in which every message of this task carries the id.

    Args:
        request_id: see :func:`request_id_of`.
        more: what else is known of the call, such as ``method``.
    """
    return logger.contextualize(request_id=request_id, **more)
