"""What a measurement ran on; every bench's JSON carries it."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_LIBRARIES = ("speculant-graph", "grpcio", "networkx", "numpy", "protobuf", "tokenizers", "torch", "transformers")


def describe_machine() -> dict[str, object]:
    """Return cpu, cores, memory in bytes, python and library versions; what can't be found out is left out."""
    description: dict[str, object] = {
        "cpu": _processor(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "python": platform.python_version(),
    }
    libraries = {}
    for name in _LIBRARIES:
        try:
            libraries[name] = version(name)
        except PackageNotFoundError:
            continue
    return description | {"libraries": libraries}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
