"""``speculant``: finds the command, turns errors into one line, and imports nothing it does not need.

The table is one of the project's two upward references (the other is the package's public names): commands of the
two halves are named here as text and imported when they run.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from speculant_graph.cli.signals import signals_unwind
from speculant_graph.cli.terminal import printable
from speculant_graph.errors import ConfigError, SpeculantError
from speculant_graph.extras import missing_extra

COMMANDS = {
    "build": ("speculant_graph.cli.build", "build", "count a corpus into a graph file"),
    "update": ("speculant_graph.cli.update", "build", "add text to a graph"),
    "merge": ("speculant_graph.cli.merge", "build", "make one graph of two"),
    "prune": ("speculant_graph.cli.prune", "build", "drop what is rare from a graph"),
    "inspect": ("speculant_graph.cli.inspect", "build", "show what a graph holds and what it would draft"),
    "view": ("speculant_graph.cli.view", "viz", "draw what may follow a text: a page or a picture"),
    "export": ("speculant_graph.cli.export", "build", "write a graph as GEXF or GraphML"),
    "drafter": ("speculant_drafter.cli", "drafter", "serve a graph as the drafter sidecar"),
    "verifier": (
        "speculant_verifier.service.command",
        "service",
        "serve a model over gRPC and OpenAI's HTTP API",
    ),
    "admin": ("speculant_graph.cli.admin", "drafter", "look after running sidecars and verifiers' adapters"),
    "probe": ("speculant_graph.cli.probe", "drafter", "ask a running drafter or verifier whether it serves"),
    "generate": ("speculant_verifier.generate.command", "verifier", "continue a prompt with a model and drafts"),
    "chat": ("speculant_verifier.chat.command", "verifier", "talk with a model in the terminal"),
    "train": ("speculant_verifier.training.command", "train", "train a draft model's adapter on recorded requests"),
    "doctor": ("speculant_graph.cli.doctor", "drafter", "check this installation and what it is to work with"),
    "config": ("speculant_graph.cli.config", "build", "show all settings and where each comes from"),
    "completion": ("speculant_graph.cli.completion", "build", "print a script that completes commands in a shell"),
    "bench": ("speculant_graph.cli.bench", "bench", "measure it against the obvious alternatives"),
    "demo": ("speculant_verifier.demo.command", "all", "run it all here and compare with plain decoding"),
}
"""Command -> (module with ``run(arguments) -> exit status``, extra it needs, what it does)."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Returns:
        The exit status: 0 success, 1 the command failed, 2 it was asked for something wrong, 130 interrupted.

    Raises:
        SystemExit: it was ended by SIGTERM or SIGHUP; 128 and the signal's number.
    """
    if sys.stdout is None:  # it was closed before we began
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - until the end of the process
    try:
        status = _run(list(sys.argv[1:] if arguments is None else arguments))
        sys.stdout.flush()  # now: at the end of the process a closed pipe would be an error
    except BrokenPipeError:
        return _reader_left()
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # rich makes this of it
            return _reader_left()
        raise
    except OSError as error:
        return _fail(f"{error}; check the path, its permissions and the space", 1)
    return status


def _run(given: Sequence[str]) -> int:
    if not given or given[0] in ("-h", "--help", "help"):
        sys.stdout.write(_help())
        return 0
    if given[0] in ("-V", "--version"):
        from speculant_graph.version import VERSION

        sys.stdout.write(f"speculant-graph {VERSION}\n")
        return 0
    name = given[0]
    if name not in COMMANDS:
        return _fail(f"there is no command '{name}'; it may be: {', '.join(COMMANDS)}", 2)
    module, extra, _ = COMMANDS[name]
    try:
        with signals_unwind():
            status: int = importlib.import_module(module).run(given[1:])
    except SpeculantError as error:
        from speculant_graph.settings import as_typed

        return _fail(f"{name}: {as_typed(str(error), given[1:])}", 2 if isinstance(error, ConfigError) else 1)
    except ImportError as error:
        explained = missing_extra(error, extra)
        if explained is None:
            raise
        return _fail(f"{name}: {explained}", 1)
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    except SystemExit as end:
        if end.code:
            raise
        return 0  # it was asked for help
    return status


def _reader_left() -> int:
    """End without a word: the reader of a pipe has what it wanted."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _help() -> str:
    lines = [f"  {name:<12} {what}" for name, (_, _, what) in COMMANDS.items()]
    return (
        "usage: speculant COMMAND [options]\n\nSpeculative decoding from an n-gram graph of your own text.\n\n"
        "commands:\n" + "\n".join(lines) + "\n\n'speculant COMMAND --help' lists a command's options. An option like "
        "--graph.max-order can also be\nan environment variable (SPECULANT_GRAPH__MAX_ORDER=4), or stand in "
        "speculant.toml below [graph]\n(max_order = 4).\n"
    )


def _fail(message: str, status: int) -> int:
    sys.stderr.write(f"speculant: {printable(message)}\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
