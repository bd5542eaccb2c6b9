"""One engine of ``bench fleet``, in a process of its own: ``python -m`` this module, its order on standard input.

It says ``ready`` when it drafts, measures from one line of standard input to the next, and prints its passes as JSON.
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
    """What an engine does."""

    addresses: str
    """Of the sidecars, as in ``client.address``."""
    tokenizer: tuple[str, str, int]
    """Fields of the graph's fingerprint."""
    texts: str
    """File of numpy: a row of token ids for each trace."""
    prompt_tokens: int
    """Of each row, tokens that are the prompt; the others are the output."""
    first: int
    """The trace that it begins with; after the last one the first follows."""
    tenants: list[str]
    """Whose sequences it decodes, in turns; none: sequences have no tenant."""
    rows: int
    k: int
    curve: str
    deadline_ms: float


@dataclass(slots=True)
class EnginePasses:
    """The passes of an engine, by columns."""

    ended_s: list[float] = field(default_factory=list)
    """When each ended, by the clock that all processes of the machine share."""
    draft_s: list[float] = field(default_factory=list)
    pass_s: list[float] = field(default_factory=list)
    num_drafted: list[int] = field(default_factory=list)
    num_tokens: list[int] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)
    """Messages of each pass that were sent: none while the sidecar is left alone, or while drafts do not pay."""
    failed: list[int] = field(default_factory=list)
    """Messages of each pass that a sidecar did not answer in time, or that were not sent as it is left alone."""
    late: int = 0
    """Answers that came too late."""
    errors: int = 0
    """Batches that raised, which no fault of a sidecar may cause."""


@contextmanager
def running_engine(order: Order) -> Iterator[subprocess.Popen[str]]:
    """Run an engine inside of the block, which begins when the engine drafts.

    Raises:
        SpeculantError: it does not start.
    """
    with running_module(__name__, [json.dumps(asdict(order))], is_told=True) as process:
        if process.stdout is None or process.stdout.readline().strip() != "ready":
            raise SpeculantError("a simulated engine did not start; its message is above")
        yield process


def tell_all(engines: Sequence[subprocess.Popen[str]]) -> None:
    """Let engines begin to measure, or end.

    Raises:
        SpeculantError: one has ended before.
    """
    for engine in engines:
        assert engine.stdin is not None
        try:
            engine.stdin.write("\n")
            engine.stdin.flush()
        except OSError as error:
            raise _failed() from error


def end_all(engines: Sequence[subprocess.Popen[str]]) -> list[EnginePasses]:
    """End engines; return their passes.

    Raises:
        SpeculantError: one failed.
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
        next(loop)  # the pause is no part of a pass
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
