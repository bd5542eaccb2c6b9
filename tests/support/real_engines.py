"""Paths and environments of the engines that 'make engines' installs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / ".cache" / "engines"
EXAMPLE = Path(__file__).parents[2] / "examples" / "sglang"
"""The plug-in for SGLang."""


def installed(name: str) -> Path:
    """Return a file or folder of 'make engines', or skip the test."""
    path = FOLDER / name
    if not path.exists():
        pytest.skip(f"{name} is not there; run: make engines")
    return path


def v2_environment() -> dict[str, str]:
    """Return the environment for vLLM's V2 runner on a CPU, with asynchronous scheduling as on a GPU."""
    folders = Path(__file__).parent / "triton_interpreter", installed("triton/.installed").parent
    return {"PYTHONPATH": os.pathsep.join(map(str, folders)), "KEEP_ASYNCHRONOUS": "1", "VLLM_PLUGINS": "speculant"}
