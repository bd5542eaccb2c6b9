"""Drafters for a verifier: a client of a sidecar, a drafter in this process, or one that never drafts. Needs no torch.

The sidecar's client imports no graph code; ``LocalDrafter`` imports graph code, so it is loaded lazily.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from speculant_graph.client.asynchronous import AsyncDrafterClient
from speculant_graph.client.drafter_client import DrafterClient
from speculant_graph.client.fleet import SidecarFleet, client_of

if TYPE_CHECKING:
    from speculant_graph.client.local import LocalDrafter as LocalDrafter
    from speculant_graph.client.local import NullDrafter as NullDrafter

__all__ = ["AsyncDrafterClient", "DrafterClient", "SidecarFleet", "client_of"]


def __getattr__(name: str) -> Any:
    if name not in ("LocalDrafter", "NullDrafter"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from speculant_graph.client import local

    return getattr(local, name)
