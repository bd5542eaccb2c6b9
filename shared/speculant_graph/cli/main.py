"""``speculant``: runs a command, prints an error as one line, and imports only the modules that the command needs.

The table of commands, like this package's list of public names, refers to packages that depend on this package. The
table therefore names the commands as text, and a command is imported only when it runs.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import current_thread, main_thread
from types import FrameType

from speculant_graph.errors import ConfigError, CorpusError, SpeculantError
from speculant_graph.extras import missing_extra
from speculant_graph.terminal import printable

COMMANDS = {
    "build": ("speculant_graph.cli.graphs:build", "build", "count a corpus into a graph file"),
    "update": ("speculant_graph.cli.graphs:update", "build", "add text to a graph"),
    "merge": ("speculant_graph.cli.graphs:merge", "build", "merge two graphs"),
    "prune": ("speculant_graph.cli.graphs:prune", "build", "drop rare n-grams from a graph"),
    "export": ("speculant_graph.cli.graphs:export", "build", "write a graph as llama.cpp's lookup cache"),
    "inspect": ("speculant_graph.cli.inspect:run", "build", "show a graph's content and its drafts"),
    "view": ("speculant_graph.cli.view:run", "build", "save the explorer's page for a text"),
    "drafter": ("speculant_drafter.cli:run", "drafter", "serve a graph as the drafter sidecar"),
    "verifier": (
        "speculant_verifier.cli.serve:run",
        "service",
        "serve a model over gRPC and OpenAI's HTTP API",
    ),
    "admin": ("speculant_graph.cli.admin:run", "drafter", "manage running sidecars and verifiers' adapters"),
    "probe": ("speculant_graph.cli.probe:run", "drafter", "check whether a running drafter or verifier serves"),
    "generate": ("speculant_verifier.cli.generate:run", "verifier", "continue a prompt with a model and drafts"),
    "chat": ("speculant_verifier.cli.chat:run", "verifier", "chat with a model in the terminal"),
    "train": ("speculant_verifier.cli.train:run", "train", "train a draft model's adapter on recorded requests"),
    "doctor": ("speculant_graph.cli.doctor:run", "drafter", "check this installation, a model, a graph and a drafter"),
    "config": ("speculant_graph.cli.config:run", "build", "show all settings and the source of each"),
    "completion": ("speculant_graph.cli.completion:run", "build", "print a completion script for a shell"),
    "bench": ("speculant_graph.cli.bench:run", "bench", "measure this project against the obvious alternatives"),
    "demo": ("speculant_verifier.cli.demo:run", "all", "run everything here and compare with plain decoding"),
}
"""Commands by name: each with its ``module:function``, the pip extra that it requires, and a description. A command's
function takes the command-line arguments and returns the exit status."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Returns:
        The exit status: 0 for success, 1 for failure, 2 for a wrong command line or setting, 130 if interrupted.

    Raises:
        SystemExit: SIGTERM or SIGHUP ended the command; the status is 128 plus the signal's number.
    """
    if sys.stdout is None:  # it was closed before the program started
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - until the end of the process
    try:
        status = _run(list(sys.argv[1:] if arguments is None else arguments))
        sys.stdout.flush()  # flush now, because a closed pipe would be an error at the end of the process
    except BrokenPipeError:
        return _reader_left()
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # rich replaces BrokenPipeError with this
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
        return _fail(f"there is no command '{name}'; choose one of: {', '.join(COMMANDS)}", 2)
    target, extra, _ = COMMANDS[name]
    module, _, function = target.partition(":")
    try:
        with signals_unwind():
            status: int = getattr(importlib.import_module(module), function)(given[1:])
    except CorpusError as error:
        for problem in error.problems:
            sys.stderr.write(f"{printable(problem)}\n")
        return _fail(f"{name}: {error.message}; {error.fix}" if error.problems else f"{name}: {error}", 1)
    except SpeculantError as error:
        return _fail(f"{name}: {error}", 2 if isinstance(error, ConfigError) else 1)
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
        return 0  # --help
    return status


@contextmanager
def signals_unwind() -> Iterator[None]:
    """Raise SystemExit on SIGTERM and SIGHUP, and KeyboardInterrupt on Ctrl-C, so that no half-written file remains.

    Raises:
        SystemExit: SIGTERM or SIGHUP was received; the status is 128 plus the signal's number.
        KeyboardInterrupt: Ctrl-C was pressed.
    """
    if current_thread() is not main_thread():  # only the main thread handles signals
        yield
        return

    def leave(number: int, _: FrameType | None) -> None:
        for end in ends:
            signal.signal(end, signal.SIG_IGN)  # a second signal would interrupt the cleanup
        raise SystemExit(128 + number)

    def interrupt(number: int, frame: FrameType | None) -> None:
        # Wrap Python's own handler: asyncio would replace it with a handler that only cancels the main task.
        signal.default_int_handler(number, frame)

    # Signals stay as they are if they are ignored, as by nohup, or handled by the caller.
    ends = [end for end in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(end) is signal.SIG_DFL]
    handles_interrupts = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    for end in ends:
        signal.signal(end, leave)
    if handles_interrupts:
        signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        for end in ends:
            signal.signal(end, signal.SIG_DFL)
        if handles_interrupts:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _reader_left() -> int:
    """Silence standard output and return 0, because the reader of the pipe has closed it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _help() -> str:
    lines = [f"  {name:<12} {what}" for name, (_, _, what) in COMMANDS.items()]
    return (
        "usage: speculant COMMAND [options]\n\nSpeculative decoding from an n-gram graph of your own text.\n\n"
        "commands:\n" + "\n".join(lines) + "\n\n'speculant COMMAND --help' lists a command's options. An option like "
        "--graph.max-order can also be\nan environment variable (SPECULANT_GRAPH__MAX_ORDER=4), or be in "
        "speculant.toml under [graph]\n(max_order = 4).\n"
    )


def _fail(message: str, status: int) -> int:
    sys.stderr.write(f"speculant: {printable(message)}\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
