"""Kernels under bounds checks, which are compiled apart from all others: in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path


def run_with_bounds_checks(function: Callable[..., None], cache: Path, *arguments: object) -> None:
    """Call a function of a test module, with arguments that can be written down; an index out of bounds fails it."""
    module = Path(function.__code__.co_filename)
    environment = {
        **os.environ,
        "NUMBA_BOUNDSCHECK": "1",
        "NUMBA_CACHE_DIR": str(cache),
        "PYTHONPATH": os.pathsep.join([*sys.path, str(module.parent)]),
    }
    call = f"{module.stem}.{function.__name__}({', '.join(map(repr, arguments))})"
    result = subprocess.run(
        [sys.executable, "-c", f"import {module.stem}; {call}; print('safe')"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.stdout.strip() == "safe", result.stderr
