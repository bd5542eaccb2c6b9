"""``speculant bench``: runs the bench that the command line names."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from speculant_graph.errors import ConfigError
from speculant_graph.extras import missing_extra

BENCHES = {
    "build": ("speculant_graph.bench.build", "build a graph: time, memory, size, and CPU against plain Python"),
    "start": ("speculant_graph.bench.start", "start the sidecar: time until it serves, memory, next to a bare server"),
    "rpc": ("speculant_graph.bench.rpc", "draft over the wire: latency by batch, against echoes of the same bytes"),
    "replay": ("speculant_graph.bench.replay", "draft for recorded outputs: tokens per step, by strategy and budget"),
    "engine-loop": ("speculant_graph.bench.engine_loop", "draft between the simulated passes of a GPU engine"),
    "fleet": ("speculant_graph.bench.fleet", "draft for several engines: engines per sidecar, and a sidecar's death"),
    "verify-cost": ("speculant_verifier.bench.verify_cost", "verify drafts: time of a forward pass by batch and nodes"),
    "generate": ("speculant_verifier.bench.generate", "decode: plainly, with drafts, and with transformers' own"),
    "adapter": ("speculant_verifier.bench.adapter", "decode with a draft model: with n-grams, and alone"),
    "structured": ("speculant_verifier.bench.structured", "decode structured output, and second calls of chats"),
    "offload": ("speculant_verifier.bench.offload", "decode with a model larger than memory: plainly, and with trees"),
    "engines": ("speculant_verifier.bench.engines", "decode with vLLM and llama.cpp: their drafts and ours"),
    "serve": ("speculant_verifier.bench.serve", "send many concurrent streams to a service, plainly and with drafts"),
}
"""Benches by name: each with its module, whose ``run(arguments)`` returns the exit status, and a description of the
measurement. Modules are named as text and imported only when a bench runs, like the commands in ``main``."""


def run(arguments: Sequence[str]) -> int:
    """Run the bench that the first argument names.

    Raises:
        ConfigError: there is no such bench.
        KeyboardInterrupt: the user interrupted the bench.
    """
    if not arguments or arguments[0] in ("-h", "--help"):
        sys.stdout.write(_help())
        return 0
    name = arguments[0]
    if name not in BENCHES:
        raise ConfigError(f"there is no bench '{name}'; choose one of: {', '.join(BENCHES)}")
    module = BENCHES[name][0]
    from speculant_graph.log import log_to_stderr

    log_to_stderr("WARNING")
    try:
        status: int = importlib.import_module(module).run(arguments[1:])
    except ConfigError as error:
        raise ConfigError(f"{name}: {error.message}", fix=error.fix, field=error.field) from error
    except ImportError as error:
        explained = missing_extra(error, "verifier") if module.startswith("speculant_verifier.") else None
        if explained is None:
            raise  # the extra of this command installs it
        raise ConfigError(f"{name}: {explained}") from error
    return status


def _help() -> str:
    lines = [f"  {name:<12} {what}" for name, (_, what) in BENCHES.items()]
    return (
        "usage: speculant bench BENCH [options]\n\nMeasure this project on this machine.\n\nbenches:\n"
        + "\n".join(lines)
        + "\n\n'speculant bench BENCH --help' lists a bench's options; with --json the last line is a JSON object.\n"
    )
