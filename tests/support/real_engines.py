"""The engines that 'make engines' installs."""

from __future__ import annotations

from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / ".cache" / "engines"


def installed(name: str) -> Path:
    """Return a file or folder of 'make engines', or skip the test."""
    path = FOLDER / name
    if not path.exists():
        pytest.skip(f"{name} is not there; run: make engines")
    return path
