"""The machine: processor, memory, limits, clock."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path

from speculant_graph.cli.checks.finding import Finding
from speculant_graph.machine import available_bytes, describe_machine

_FEATURES = ("avx2", "avx512f", "amx_bf16", "asimd", "sve")
"""What fast matrix products need, on either kind of processor."""
_FEW_FILES = 1024
_SLOW_CLOCKS = ("hpet", "acpi_pm", "jiffies", "refined-jiffies")
_FIRST_RELEASE_S = 1_735_689_600.0
"""Seconds since 1970 of a time before this program was written."""


def check_machine() -> Iterator[Finding]:
    """Check what drafting and decoding depend on."""
    yield _processor()
    yield _memory()
    yield _open_files()
    yield _clock()


def _processor() -> Finding:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    features = sorted(_flags() & set(_FEATURES))
    nodes = len(list(Path("/sys/devices/system/node").glob("node[0-9]*")))
    detail = f"{describe_machine()['cpu'] or 'unknown'}, {cores} core{'' if cores == 1 else 's'}"
    detail += f", {nodes} NUMA nodes" if nodes > 1 else ""
    detail += f", {' '.join(features)}" if features else ""
    if cores < 2:
        return Finding("processor", "warn", detail, "give the drafter a core of its own, beside those of the model")
    if nodes > 1:
        return Finding("processor", "ok", detail + " (keep drafter and verifier on one node: numactl --cpunodebind=0)")
    return Finding("processor", "ok", detail)


def _flags() -> set[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return set()
    listed = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return set(listed.partition(":")[2].split())


def _memory() -> Finding:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    available = available_bytes()
    if available is None:
        return Finding("memory", "ok", f"{total / 1e9:.1f} GB")
    detail = f"{available / 1e9:.1f} GB free of {total / 1e9:.1f} GB"
    if available < 1e9:
        return Finding("memory", "warn", detail, "end other programs; a build wants 2 GB, a model more")
    return Finding("memory", "ok", detail)


def _open_files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = "any number" if soft == resource.RLIM_INFINITY else f"{soft:,}"
    detail = f"a process may open {allowed} of files and sockets"
    if soft != resource.RLIM_INFINITY and soft < _FEW_FILES:
        return Finding("open files", "warn", detail, f"ulimit -n {min(65_536, max(hard, _FEW_FILES))}")
    return Finding("open files", "ok", detail)


def _clock() -> Finding:
    if time.time() < _FIRST_RELEASE_S:
        detail = f"it says {time.strftime('%Y-%m-%d')}, so certificates will be refused"
        return Finding("clock", "fail", detail, "set the clock, for example by timedatectl set-ntp true")
    try:
        source = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource").read_text("ascii").strip()
    except OSError:
        source = ""
    if source in _SLOW_CLOCKS:
        return Finding(
            "clock", "warn", f"source {source}, slow to read", "boot with clocksource=tsc if the machine can"
        )
    return Finding("clock", "ok", time.strftime("%Y-%m-%d %H:%M") + (f", source {source}" if source else ""))
