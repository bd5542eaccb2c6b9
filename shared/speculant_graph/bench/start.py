"""``speculant bench start``: measures a sidecar's memory, and its start time against a bare gRPC server's."""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from speculant_graph.bench.report import print_report
from speculant_graph.settings import ReportingSettings, load_settings


class BenchStartSettings(ReportingSettings):
    """Start a sidecar repeatedly and time each start until it serves; the first simulates a new machine.

    The first start finds bytecode of the packages that pip installed, but no bytecode of this project and no caches.
    The sidecar is compared with a gRPC echo server, which loads nothing.
    """

    graph_path: Path
    """Graph file to serve."""
    starts: Annotated[int, Field(ge=1, le=100)] = 5
    """Number of starts after the first one; the report shows the median of their times."""


def run(arguments: Sequence[str]) -> int:
    """Measure and print."""
    settings = load_settings(BenchStartSettings, "bench start", arguments)
    from speculant_graph.graph.ngrams import NgramGraph

    NgramGraph.load(settings.graph_path)  # reports a damaged file at once
    with tempfile.TemporaryDirectory(prefix="speculant-start-") as folder:
        figures = _measured(settings.graph_path.absolute(), settings.starts, Path(folder))
    print_report("start", figures, arguments, as_json=settings.json_output)
    return 0


def _measured(graph: Path, starts: int, folder: Path) -> dict[str, Any]:
    environment = {
        "PYTHONPYCACHEPREFIX": str(folder / "bytecode"),
        "PYTHONDONTWRITEBYTECODE": "",  # the first start writes bytecode that later ones read
        "XDG_CACHE_HOME": str(folder / "cache"),
    }
    _drafter(graph, folder, environment)  # writes all bytecode
    for package in (folder / "bytecode").rglob("speculant_*"):
        shutil.rmtree(package)
    shutil.rmtree(folder / "cache", ignore_errors=True)
    cold_s, _ = _drafter(graph, folder, environment)
    later = [_drafter(graph, folder, environment) for _ in range(starts)]
    echo_s = statistics.median(_echo_s(folder, environment) for _ in range(starts))
    memory = later[-1][1]
    return {
        "cold_s": round(cold_s, 3),
        "warm_s": round(statistics.median(seconds for seconds, _ in later), 3),
        "echo_s": round(echo_s, 3),
        "rss_bytes": memory["rss"],
        "own_bytes": memory["rss"] - memory["graph"],
        "graph_bytes": graph.stat().st_size,
        "starts": starts,
    }


def _drafter(graph: Path, folder: Path, environment: Mapping[str, str]) -> tuple[float, dict[str, int]]:
    """Start a sidecar; return its start time in seconds, its resident memory, and the graph's part of the memory."""
    import psutil

    from speculant_graph.bench.processes import await_health, running_module

    address = f"unix://{folder}/drafter.sock"
    arguments = ["drafter", "--listen", address, "--server.graph", str(graph), "--log-level", "WARNING"]
    start = time.perf_counter()
    with running_module("speculant_graph.cli.main", arguments, environment) as process:
        seconds = await_health(process, address, interval_s=0.005) - start
        maps = psutil.Process(process.pid).memory_maps(grouped=False)
        resolved = str(graph.resolve())
        return seconds, {
            "rss": sum(region.rss for region in maps),
            "graph": sum(region.rss for region in maps if region.path == resolved),
        }


def _echo_s(folder: Path, environment: Mapping[str, str]) -> float:
    from speculant_graph.bench.processes import running_module

    start = time.perf_counter()
    with running_module("speculant_graph.bench.echo", [f"unix://{folder}/echo.sock"], environment) as process:
        assert process.stdout is not None
        process.stdout.readline()
        return time.perf_counter() - start
