"""The drafter sidecar: a gRPC server for the draft generator. The sidecar needs neither torch nor a tokenizer."""

from __future__ import annotations

__version__: str
"""Version of the installed distribution; read from its metadata on first use."""


def __getattr__(name: str) -> str:
    """Return ``__version__``, which is read on first use."""
    if name != "__version__":
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    from speculant_graph.version import VERSION

    return VERSION
