"""Measurements of ``bench fleet``: real sidecars, on their own cores if possible, serve simulated engines."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from speculant_graph.bench.fleet_engine import EnginePasses, Order, end_all, running_engine, tell_all
from speculant_graph.bench.fleet_figures import draft_figures, event_figures
from speculant_graph.bench.processes import OwnDrafter, free_port
from speculant_graph.bench.report import begin
from speculant_graph.client import DrafterClient
from speculant_graph.config import ClientConfig, DraftConfig
from speculant_graph.errors import SpeculantError
from speculant_graph.types import SequenceStep, SessionOptions

_TRACES_PER_ENGINE = 37
_NUM_SESSIONS, _NUM_TENANTS = 200, 64
_POLL_S = 0.02
_PATIENCE_S = 30.0


@dataclass(frozen=True, slots=True)
class Ground:
    """Inputs that all measurements of the bench share."""

    folder: Path
    """Folder for sockets."""
    graph: Path
    order: Order
    """Template for the parameters of an engine; addresses and the first trace are filled in later."""
    num_traces: int
    is_tcp: bool
    """Whether engines connect to sidecars over TCP instead of Unix sockets."""

    def orders(self, sidecars: Sequence[OwnDrafter], count: int) -> list[Order]:
        """Return the parameters of engines that start at different traces."""
        order = replace(self.order, addresses=",".join(each.address for each in sidecars))
        return [replace(order, first=index * _TRACES_PER_ENGINE % self.num_traces) for index in range(count)]


class WatchedDrafter(OwnDrafter):
    """A sidecar that runs on the given CPU cores and exposes its metrics."""

    def __init__(self, graph: Path, address: str, cores: Sequence[int]) -> None:
        """Start the sidecar, and wait until it serves.

        Raises:
            SpeculantError: the sidecar does not start.
        """
        self._cores, self._port = cores, free_port()
        super().__init__(graph, address, "--metrics-listen", f"127.0.0.1:{self._port}")

    def start(self) -> None:
        """Start the sidecar on its CPU cores, and wait until it serves."""
        with _on(self._cores):
            super().start()

    def told(self, name: str) -> float:
        """Return the sum of all samples of a Prometheus metric."""
        with closing(HTTPConnection("127.0.0.1", self._port, timeout=_PATIENCE_S)) as connection:
            connection.request("GET", "/metrics")
            lines = connection.getresponse().read().decode().splitlines()
        samples = (line.rpartition(" ") for line in lines if line.startswith(f"speculant_drafter_{name}"))
        return sum(float(value) for _, _, value in samples)

    @property
    def busy_s(self) -> float:
        """CPU time of the sidecar, in seconds."""
        times = psutil.Process(self.process.pid).cpu_times()
        return times.user + times.system

    @property
    def num_bytes(self) -> int:
        """Resident memory of the sidecar, in bytes."""
        size: int = psutil.Process(self.process.pid).memory_info().rss
        return size


def count_engines(
    ground: Ground, most_sidecars: int, counts: Sequence[int], seconds: float, bar_s: float
) -> list[dict[str, Any]]:
    """Run engines on as many sidecars as can have their own core; return one row per number of engines.

    Args:
        ground: common inputs.
        most_sidecars: maximum number of sidecars.
        counts: numbers of engines per sidecar.
        seconds: duration of each measurement.
        bar_s: limit of the drafting time per pass, in seconds.
    """
    num_sidecars = max(1, min(most_sidecars, len(os.sched_getaffinity(0)) - 1))
    results = []
    for count in counts:
        begin(f"engines: {count * num_sidecars}, sidecars: {num_sidecars}")
        with (
            _running(ground, num_sidecars) as (sidecars, cores),
            _playing(ground.orders(sidecars, count * num_sidecars), cores) as end,
        ):
            former = _observed(sidecars)
            time.sleep(seconds)
            busy_s, drafting_s, steps, nodes = np.subtract(_observed(sidecars), former).tolist()
            engines = end()
        results.append(
            {
                "engines": count * num_sidecars,
                "sidecars": num_sidecars,
                **draft_figures(engines, ground.order.rows, bar_s),
                "core_share": round(busy_s / seconds / num_sidecars, 4),
                "drafting_share": round(drafting_s / seconds / num_sidecars, 4),
                "cpu_us_per_step": round(1e6 * busy_s / max(1.0, steps), 1),
                "cpu_us_per_drafted_token": round(1e6 * busy_s / max(1.0, nodes), 2),
                "load": round(os.getloadavg()[0], 2),
            }
        )
    return results


def measure_memory(ground: Ground) -> dict[str, Any]:
    """Return the sidecar memory per session and per tenant's learned text, and the number of tokens of each."""
    begin("memory of sessions and tenants")
    texts = np.load(ground.order.texts)
    with _running(ground, 1) as ([sidecar], _):
        config = ClientConfig(address=sidecar.address, deadline_ms=1e3 * _PATIENCE_S)
        with DrafterClient(config, tokenizer=None, draft=DraftConfig(), strict=True) as client:

            def feed(session_id: int, tenant: str) -> None:
                client.open(session_id, SessionOptions(tenant=tenant))
                text = texts[session_id % len(texts)].tolist()
                for end in (1, len(text)):  # the first step contains the prompt, which is not learned
                    client.draft([SequenceStep(session_id, text[:end], ground.order.k)])

            feed(0, "first")
            empty = sidecar.num_bytes
            for number in range(1, 1 + _NUM_SESSIONS):
                feed(number, "first")
            with_sessions = sidecar.num_bytes
            for number in range(_NUM_TENANTS):
                session_id = 1 + _NUM_SESSIONS + number
                feed(session_id, f"tenant {number}")
                client.finish(session_id)
            _until(lambda: sidecar.told("learned_tokens") >= _NUM_TENANTS * (texts.shape[1] - 1))
            with_tenants = sidecar.num_bytes
    return {
        "session_bytes": round((with_sessions - empty) / _NUM_SESSIONS),
        "tenant_bytes": round((with_tenants - with_sessions) / _NUM_TENANTS),
        "tokens_each": int(texts.shape[1]),
    }


def kill_and_start(ground: Ground, num_sidecars: int, window_s: float) -> tuple[list[dict[str, Any]], int]:
    """Kill a sidecar under load, and start it again; return the effects on the engines.

    Args:
        ground: common inputs.
        num_sidecars: number of sidecars, and also the number of engines.
        window_s: seconds before and after each event.

    Returns:
        Figures about the kill and the restart, and the number of the engines' batches that raised an error.
    """
    begin(f"killing and restarting one of {num_sidecars} sidecars")
    with (
        _running(ground, num_sidecars) as (sidecars, cores),
        _playing(ground.orders(sidecars, num_sidecars), cores) as end,
    ):
        first = sidecars[0]
        time.sleep(window_s)
        first.kill()
        killed_s = time.monotonic()
        time.sleep(window_s)
        first.start()
        started_s = time.monotonic()
        _until(lambda: first.told("sequences_total") > 0)
        used_s = time.monotonic() - started_s
        time.sleep(max(0.0, started_s + window_s - time.monotonic()))
        engines = end()
    events = [
        {"event": "killed", **event_figures(engines, killed_s, window_s)},
        {"event": "started", **event_figures(engines, started_s, window_s), "used_again_s": round(used_s, 3)},
    ]
    return events, sum(each.errors for each in engines)


@contextmanager
def _on(cores: Sequence[int]) -> Iterator[None]:
    """Pin processes that are started inside the ``with`` block to these CPU cores."""
    former = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, former)


@contextmanager
def _running(ground: Ground, count: int) -> Iterator[tuple[list[WatchedDrafter], list[int]]]:
    """Run sidecars during the ``with`` block; yield the sidecars, and at least one core for engines."""
    cores = sorted(os.sched_getaffinity(0))
    num_own = max(1, min(count, len(cores) - 1))
    own, others = cores[-num_own:], cores[:-num_own] or cores
    with ExitStack() as stack:
        sidecars = []
        for index in range(count):
            address = f"localhost:{free_port()}" if ground.is_tcp else f"unix://{ground.folder}/{index}.sock"
            drafter = WatchedDrafter(ground.graph, address, [own[index % num_own]])
            sidecars.append(stack.enter_context(closing(drafter)))
        yield sidecars, others


@contextmanager
def _playing(orders: Sequence[Order], cores: Sequence[int]) -> Iterator[Callable[[], list[EnginePasses]]]:
    """Run engines during the ``with`` block; yield a function that ends them and returns their passes."""
    with ExitStack() as stack:
        with _on(cores):
            engines = [stack.enter_context(running_engine(order)) for order in orders]
        tell_all(engines)
        yield lambda: end_all(engines)


def _observed(sidecars: Sequence[WatchedDrafter]) -> tuple[float, ...]:
    """Return the sidecars' CPU time, summed step latency, steps and drafted nodes since their start."""
    names = ("step_seconds_sum", "steps_total", "drafted_nodes_total")
    return sum(each.busy_s for each in sidecars), *(sum(each.told(name) for each in sidecars) for name in names)


def _until(is_so: Callable[[], bool]) -> None:
    """Wait until a condition is true.

    Raises:
        SpeculantError: the wait takes too long.
    """
    give_up_s = time.monotonic() + _PATIENCE_S
    while not is_so():
        if time.monotonic() > give_up_s:
            raise SpeculantError("a sidecar did not react in time; run the bench again")
        time.sleep(_POLL_S)
