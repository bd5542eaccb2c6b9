"""What a measurement ran on; every bench's JSON carries it."""

from __future__ import annotations

import os
import platform
import resource
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_LIBRARIES = (
    "speculant-graph", "grpcio", "networkx", "numpy", "protobuf", "psutil", "ray", "tiktoken", "tokenizers",
    "torch", "transformers",
)  # fmt: skip


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


def num_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def anonymous_bytes() -> int:
    """Return the bytes of this process that no file backs; where that is unknown, the most it ever had resident."""
    return _status_bytes("RssAnon")


def peak_resident_bytes() -> int:
    """Return the most memory this process ever had resident, mapped files included."""
    return _status_bytes("VmHWM")


def available_bytes() -> int | None:
    """Return the memory that programs may take, the container's limit heeded; None where that can't be found out."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    free = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)
    try:
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii"))
        used = int(Path("/sys/fs/cgroup/memory.current").read_text(encoding="ascii"))
    except (OSError, ValueError):  # none, or "max"
        return free
    return limit - used if free is None else min(free, limit - used)


def _status_bytes(name: str) -> int:
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        # Kilobytes on Linux and BSD; only macOS, which has no /proc, counts bytes.
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(name + ":")), 0)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
