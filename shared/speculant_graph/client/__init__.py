"""Drafters for a verifier: clients of a sidecar, a graph in this process, or none. Needs no torch."""

from __future__ import annotations

from speculant_graph.client.asynchronous import AsyncDrafterClient
from speculant_graph.client.blocking import DrafterClient
from speculant_graph.client.local import LocalDrafter, NullDrafter

__all__ = ["AsyncDrafterClient", "DrafterClient", "LocalDrafter", "NullDrafter"]
