"""Drafters for a verifier: clients of a sidecar, a graph in this process, or none. Needs no torch.

The clients load neither graphs nor what drafts from them; those come with ``LocalDrafter``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from speculant_graph.client.asynchronous import AsyncDrafterClient
from speculant_graph.client.blocking import DrafterClient
from speculant_graph.client.none import NullDrafter

if TYPE_CHECKING:
    from speculant_graph.client.local import LocalDrafter as LocalDrafter

__all__ = ["AsyncDrafterClient", "DrafterClient", "NullDrafter"]


def __getattr__(name: str) -> Any:
    if name != "LocalDrafter":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from speculant_graph.client.local import LocalDrafter

    return LocalDrafter
