"""Drafters for a verifier: a sidecar's client, a graph in this process, or none. Needs no torch."""

from __future__ import annotations

from speculant_graph.client.local import LocalDrafter, NullDrafter
from speculant_graph.client.stream import DrafterClient

__all__ = ["DrafterClient", "LocalDrafter", "NullDrafter"]
