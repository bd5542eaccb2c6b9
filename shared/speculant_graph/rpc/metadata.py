"""Names of metadata that both sides know."""

from __future__ import annotations

VERSION_KEY = "x-speculant-version"
"""Trailing metadata in which a server says its version."""
