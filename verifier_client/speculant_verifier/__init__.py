"""The verifier: runs the target model, verifies drafts in one forward pass, and emits exactly the target's output.

All code that needs torch is in this package; :mod:`speculant_graph` lazily re-exports its public names.
"""

from __future__ import annotations

__version__: str
"""Version of the installed distribution, read on first use."""


def __getattr__(name: str) -> str:
    """Return the version for ``__version__``; it is read only on first use."""
    if name != "__version__":
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    from speculant_graph.version import VERSION

    return VERSION
