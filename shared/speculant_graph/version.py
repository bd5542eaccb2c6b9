"""The version of the installed distribution."""

from __future__ import annotations

from importlib.metadata import version

VERSION = version("speculant-graph")
"""The installed version."""
