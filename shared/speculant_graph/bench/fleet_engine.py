"""A simulated engine of ``bench fleet``: a process that runs this module, with its parameters as JSON.

The engine prints ``ready`` after its warm-up passes. One line on the engine's standard input starts the measurement,
and the next line ends it. After the measurement, the engine prints the figures of its passes as JSON.
"""

from __future__ import annotations

import itertools
import json
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field

import numpy as np

from speculant_graph.bench.processes import running_module
from speculant_graph.bench.simulated_engine import passes
from speculant_graph.bench.texts import Trace
from speculant_graph.budget import curve_of
from speculant_graph.engines.factory import load_engine_settings, open_sessions
from speculant_graph.errors import SpeculantError
from speculant_graph.types import Fingerprint

WARM_UP_PASSES = 50


@dataclass(frozen=True, slots=True)
class Order:
    """Parameters of a simulated engine."""

    addresses: str
    """Addresses of the sidecars, as in ``client.address``."""
    tokenizer: tuple[str, str, int]
    """Name, SHA-256 digest and vocabulary size of the graph's tokenizer."""
    texts: str
    """Name of a NumPy file with one row of token ids per trace."""
    prompt_tokens: int
    """Number of prompt tokens at the start of each row of ``texts``; the row's other tokens are the output."""
    first: int
    """Index of the first trace to decode; after the last trace, decoding continues with trace 0."""
    tenants: list[str]
    """Tenants to which sequences are assigned in turn; if empty, sequences have no tenant."""
    rows: int
    k: int
    curve: str
    deadline_ms: float


@dataclass(slots=True)
class EnginePasses:
    """Measurements of an engine's passes; each list has one entry per pass."""

    ended_s: list[float] = field(default_factory=list)
    """Time when each pass ended, by the clock that all processes of the machine share."""
    draft_s: list[float] = field(default_factory=list)
    pass_s: list[float] = field(default_factory=list)
    num_drafted: list[int] = field(default_factory=list)
    num_tokens: list[int] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)
    """Number of draft requests sent per pass; 0 while the client pauses requests or drafts do not pay off."""
    failed: list[int] = field(default_factory=list)
    """Number of failed draft requests per pass: not answered in time, or not sent because requests are paused."""
    late: int = 0
    """Number of answers that arrived after their deadline."""
    errors: int = 0
    """Number of batches that raised an error, which a failing sidecar must never cause."""


@contextmanager
def running_engine(order: Order) -> Iterator[subprocess.Popen[str]]:
    """Run a simulated engine during the ``with`` block, which begins after the engine's warm-up passes.

    Raises:
        SpeculantError: the engine does not start.
    """
    with running_module(__name__, [json.dumps(asdict(order))], is_told=True) as process:
        if process.stdout is None or process.stdout.readline().strip() != "ready":
            raise SpeculantError("a simulated engine did not start; its message is above")
        yield process


def tell_all(engines: Sequence[subprocess.Popen[str]]) -> None:
    """Send engines the line that starts or ends their measurement.

    Raises:
        SpeculantError: an engine has exited.
    """
    for engine in engines:
        assert engine.stdin is not None
        try:
            engine.stdin.write("\n")
            engine.stdin.flush()
        except OSError as error:
            raise _failed() from error


def end_all(engines: Sequence[subprocess.Popen[str]]) -> list[EnginePasses]:
    """End all engines, and return the measurements of their passes.

    Raises:
        SpeculantError: an engine failed.
    """
    tell_all(engines)
    lines = [engine.stdout.readline() for engine in engines if engine.stdout is not None]
    if not all(lines):
        raise _failed()
    return [EnginePasses(**json.loads(line)) for line in lines]


def _failed() -> SpeculantError:
    return SpeculantError("a simulated engine failed; its message is above")


def _run(order: Order) -> None:
    texts = np.load(order.texts, mmap_mode="r")
    numbers = itertools.islice(itertools.cycle(range(len(texts))), order.first, None)
    split = order.prompt_tokens
    traces = (Trace(tuple(texts[each, :split].tolist()), tuple(texts[each, split:].tolist())) for each in numbers)
    given = {"client": {"address": order.addresses, "deadline_ms": order.deadline_ms}}
    name, sha256, size = order.tokenizer
    settings = load_engine_settings(given, "bench fleet")
    sessions = open_sessions(settings, Fingerprint(name, sha256, size), most_drafted=order.k, vocabulary_size=size)
    found = EnginePasses()
    with ExitStack() as stack:
        stack.callback(sessions.close)
        loop = passes(sessions, traces, order.rows, order.k, curve_of(order.curve, "--curve"), order.tenants or None)
        for _ in range(WARM_UP_PASSES):
            next(loop)
        _say("ready")
        sys.stdin.readline()
        next(loop)  # drops the pass that contains the wait
        last = former = sessions.drafter_statistics
        while not select.select([sys.stdin], [], [], 0.0)[0]:
            each = next(loop)
            counted = sessions.drafter_statistics
            found.ended_s.append(time.monotonic())
            found.draft_s.append(each.draft_s)
            found.pass_s.append(each.pass_s)
            found.num_drafted.append(each.num_drafted)
            found.num_tokens.append(each.num_tokens)
            found.asked.append(counted.steps - counted.skipped_steps - last.steps + last.skipped_steps)
            found.failed.append(counted.failed_steps - last.failed_steps)
            last = counted
        found.late = last.late_answers - former.late_answers
        found.errors = sessions.counts.failed_steps
    _say(json.dumps(asdict(found)))


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    _run(Order(**json.loads(sys.argv[1])))
