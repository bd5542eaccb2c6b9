"""What administrators do with a running verifier's adapters, whichever way they come in."""

from __future__ import annotations

import asyncio

from speculant_graph.errors import ConfigError, DraftRequestError, UnservedRequestError
from speculant_verifier.decoder import SpeculativeDecoder
from speculant_verifier.draft_model.adapters import Adapters


def adapters_of(decoder: SpeculativeDecoder) -> Adapters:
    """Return a decoder's adapters.

    Raises:
        UnservedRequestError: it has no draft model.
    """
    if decoder.adapters is None:
        raise UnservedRequestError("the verifier has no draft model; start it with --draft-model")
    return decoder.adapters


async def load_adapter(adapters: Adapters, name: str) -> None:
    """Load an adapter in a thread and draft with it.

    Args:
        adapters: of the decoder.
        name: one of the settings' names: who looks after a verifier does not choose what it reads of its machine.
            Empty: the draft model without an adapter.

    Raises:
        DraftRequestError: the name is none of these, the adapter can't be used, or (DraftLimitError) another one is
            being loaded. What drafts is unchanged.
    """
    if name and name not in adapters.names:
        known = ", ".join(adapters.names) or "none, name some by draft_model.adapters"
        raise DraftRequestError(f"there is no adapter of this name; those of the settings are: {known}")
    try:
        await asyncio.to_thread(adapters.load, name)
    except ConfigError as error:
        raise DraftRequestError(str(error)) from error


def rollback_adapter(adapters: Adapters) -> None:
    """Bring back what drafted before.

    Raises:
        DraftRequestError: there is nothing to bring back.
    """
    try:
        adapters.rollback()
    except ConfigError as error:
        raise DraftRequestError(str(error)) from error
