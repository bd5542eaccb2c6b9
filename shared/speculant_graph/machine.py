"""Describes the machine that a benchmark runs on, for the benchmark's JSON output."""

from __future__ import annotations

import os
import platform
import resource
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_LIBRARIES = (
    "speculant-graph", "grpcio", "networkx", "numpy", "protobuf", "psutil", "tokenizers", "torch",
    "transformers",
)  # fmt: skip


def describe_machine() -> dict[str, object]:
    """Return the CPU, cores, memory in bytes, and versions of Python and of the installed libraries."""
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
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def anonymous_bytes() -> int:
    """Return the anonymous memory of this process in bytes; if unknown, its peak resident size."""
    return _status_bytes("RssAnon")


def available_bytes() -> int | None:
    """Return the available memory in bytes, within the limits of control groups; None if unknown."""
    free = [int(line.split()[1]) * 1024 for line in _lines(Path("/proc/meminfo")) if line.startswith("MemAvailable:")]
    return min([*free, *(limit - used for limit, used in _control_groups())], default=None)


def _control_groups(
    root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")
) -> list[tuple[int, int]]:
    """Return the memory limit and usage of this process's control groups and their parents.

    File pages do not count as used, because the system reclaims them before it kills a process.
    """
    found = []
    for line in _lines(own):
        _, controllers, name = line.split(":", 2)
        if controllers not in ("", "memory"):  # version 2, version 1
            continue
        top = root / controllers
        limit, use, prefix = _GROUP_FILES[controllers]
        folder = top / name.lstrip("/")
        # Inside of a container, its own group may appear as the root, with any name outside.
        for each in (folder, *folder.parents) if folder.is_dir() else (top,):
            try:
                pages = dict(line.split() for line in (each / "memory.stat").read_text(encoding="ascii").splitlines())
                files = sum(int(pages[f"{prefix}{kind}_file"]) for kind in ("active", "inactive"))
                found.append((int((each / limit).read_text("ascii")), int((each / use).read_text("ascii")) - files))
            except (OSError, ValueError, KeyError):  # no limit, or "max"
                continue
    return found


_GROUP_FILES = {
    "": ("memory.max", "memory.current", ""),
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
}
"""For each version of control groups: the files with memory limit and usage, and the prefix of page totals' names."""


def _status_bytes(name: str) -> int:
    lines = _lines(Path("/proc/self/status"))
    if not lines:
        # Kilobytes on Linux and BSD; bytes only on macOS, which has no /proc.
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(name + ":")), 0)


def _processor() -> str:
    names = (line.split(":", 1)[1].strip() for line in _lines(Path("/proc/cpuinfo")) if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _lines(path: Path) -> list[str]:
    """Return the lines of a system file; none if it does not exist."""
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
