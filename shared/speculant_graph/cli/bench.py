"""``speculant bench``: finds the bench and runs it."""

from __future__ import annotations

import importlib
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Timer, current_thread, get_ident, main_thread
from types import FrameType
from typing import TYPE_CHECKING

from speculant_graph.errors import ConfigError
from speculant_graph.extras import missing_extra

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

BENCHES = {
    "build": ("speculant_graph.bench.build", "build a graph: time, memory, size, and CPU against plain Python"),
    "lookup": ("speculant_graph.bench.lookup", "draft from a graph: latency against plain Python, opening, sharing"),
    "draft": ("speculant_graph.bench.draft", "draft for sessions: latency by strategy, batches, cost of learning"),
    "rpc": ("speculant_graph.bench.rpc", "draft over the wire: latency by batch, against echoes of the same bytes"),
    "faults": ("speculant_graph.bench.faults", "stop, kill, reload, fill and fuzz a drafter: what its clients notice"),
    "replay": ("speculant_graph.bench.replay", "draft for recorded outputs: tokens per step, by strategy and budget"),
    "verify-cost": ("speculant_verifier.bench.verify_cost", "verify drafts: time of a forward pass by batch and nodes"),
    "generate": ("speculant_verifier.bench.generate", "decode: plainly, with drafts, and with transformers' own"),
    "serve": ("speculant_verifier.bench.serve", "ask a service for many streams at a time, plainly and with drafts"),
}
"""Bench -> (module with ``run(arguments) -> exit status``, what it measures). Those of the verifier are named as text
and imported when they run, as in ``main``."""

_REPEAT_S = 0.1


def run(arguments: Sequence[str]) -> int:
    """Run the bench that the first argument names.

    Raises:
        ConfigError: there is no such bench.
        KeyboardInterrupt: it was interrupted.
    """
    if not arguments or arguments[0] in ("-h", "--help"):
        sys.stdout.write(_help())
        return 0
    name = arguments[0]
    if name not in BENCHES:
        raise ConfigError(f"there is no bench '{name}'; it may be: {', '.join(BENCHES)}")
    module = BENCHES[name][0]
    try:
        with _heeding_interrupts():
            status: int = importlib.import_module(module).run(arguments[1:])
    except ImportError as error:
        explained = missing_extra(error, "verifier") if module.startswith("speculant_verifier.") else None
        if explained is None:
            raise  # the command's own extra has it
        raise ConfigError(f"{name}: {explained}") from error
    return status


@contextmanager
def _heeding_interrupts() -> Iterator[None]:
    """End by KeyboardInterrupt even if Ctrl-C comes while kernels are compiled.

    The compiler's callbacks from C lose the exception, with a traceback on standard error. What goes on then may fail
    of something else, or not at all, so it is interrupted again.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler or current_thread() is not main_thread():
        yield  # whoever calls this handles it
        return
    is_interrupted = False
    repeats: list[Timer] = []
    show = sys.unraisablehook

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal is_interrupted
        is_interrupted = True
        signal.default_int_handler(number, frame)

    def repeat(lost: UnraisableHookArgs) -> None:
        if lost.exc_type is KeyboardInterrupt:
            again = Timer(_REPEAT_S, signal.pthread_kill, (get_ident(), signal.SIGINT))  # which ends waiting, too
            again.daemon = True
            again.start()
            repeats.append(again)
        elif not is_interrupted:  # what was being made when it came can't be taken down cleanly either
            show(lost)

    signal.signal(signal.SIGINT, interrupt)
    sys.unraisablehook = repeat
    try:
        yield
    except Exception as error:
        if is_interrupted:
            raise KeyboardInterrupt from error
        raise
    finally:
        for again in repeats:
            again.cancel()
        sys.unraisablehook = show
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _help() -> str:
    lines = [f"  {name:<12} {what}" for name, (_, what) in BENCHES.items()]
    return (
        "usage: speculant bench BENCH [options]\n\nMeasure this project on this machine.\n\nbenches:\n"
        + "\n".join(lines)
        + "\n\n'speculant bench BENCH --help' lists a bench's options; with --json the last line is one JSON object.\n"
    )
