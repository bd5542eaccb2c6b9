"""``speculant bench``: finds the bench and runs it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from speculant_graph.errors import ConfigError

BENCHES = {
    "build": ("speculant_graph.bench.build", "build a graph: time, memory, size, and CPU against plain Python"),
    "lookup": ("speculant_graph.bench.lookup", "draft from a graph: latency against plain Python, opening, sharing"),
    "draft": ("speculant_graph.bench.draft", "draft for sessions: latency by strategy, batches, cost of learning"),
    "replay": ("speculant_graph.bench.replay", "draft for recorded outputs: tokens per step, by strategy and budget"),
}
"""Bench -> (module with ``run(arguments) -> exit status``, what it measures)."""


def run(arguments: Sequence[str]) -> int:
    """Run the bench that the first argument names.

    Raises:
        ConfigError: there is no such bench.
    """
    if not arguments or arguments[0] in ("-h", "--help"):
        sys.stdout.write(_help())
        return 0
    name = arguments[0]
    if name not in BENCHES:
        raise ConfigError(f"there is no bench '{name}'; it may be: {', '.join(BENCHES)}")
    status: int = importlib.import_module(BENCHES[name][0]).run(arguments[1:])
    return status


def _help() -> str:
    lines = [f"  {name:<10} {what}" for name, (_, what) in BENCHES.items()]
    return (
        "usage: speculant bench BENCH [options]\n\nMeasure this project on this machine.\n\nbenches:\n"
        + "\n".join(lines)
        + "\n\n'speculant bench BENCH --help' lists a bench's options; with --json the last line is one JSON object.\n"
    )
