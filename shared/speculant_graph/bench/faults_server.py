"""The drafter that ``speculant bench faults`` stops, kills, reloads, fills and feeds with nonsense."""

from __future__ import annotations

import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from speculant_graph.bench.processes import HOST, await_health, free_ports, kill, start_module
from speculant_graph.errors import SpeculantError
from speculant_graph.graph.ngrams import NgramGraph

Tell = Callable[[str, int, int], None]
"""Told what is being done, how much of it is, and how much there is; 0 if that is not known."""

_HEALTH_INTERVAL_S = 0.005
_SIGNAL_PATIENCE_S = 5.0
_METRICS_TIMEOUT_S = 10.0
_METRIC_PREFIX = "speculant_drafter_"


@dataclass(frozen=True, slots=True)
class Stage:
    """What all sections work with."""

    folder: Path
    """For sockets and files; gone after the run."""
    graph: NgramGraph
    """What is served."""
    token_ids: list[int]
    """What it was counted from."""
    path: Path
    """Its file."""
    texts: list[list[int]]
    """Texts to draft for."""
    tell: Tell
    """Told of progress."""


class FaultyServer:
    """A drafter in a process of its own that can be stopped, killed and started again."""

    def __init__(self, folder: Path, graph: Path, arguments: Sequence[str] = ()) -> None:
        """Make a server that does not run yet.

        Args:
            folder: for its sockets and its log.
            graph: its default graph.
            arguments: more of its flags.
        """
        tcp, metrics = free_ports(2)
        self.address = f"unix://{folder}/drafter.sock"
        """Where it is reached."""
        self.socket = folder / "drafter.sock"
        """The same as a path."""
        self.tcp = (HOST, tcp)
        """Where it is reached, too."""
        self.admin_address = f"unix://{folder}/admin.sock"
        """Its admin service."""
        self._metrics = f"http://{HOST}:{metrics}/metrics"
        self._log = folder / "drafter.log"
        self._arguments = [
            *("--listen", f"{self.address},{HOST}:{tcp}", "--admin-listen", self.admin_address),
            *("--metrics-listen", f"{HOST}:{metrics}", "--server.graph", str(graph)),
            *("--log-level", "ERROR", "--log-format", "json", *arguments),
        ]
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start it without waiting for it; its predecessor must have ended."""
        with self._log.open("a", encoding="utf-8") as log:  # a pipe would fill up
            self._process = start_module("speculant_drafter", self._arguments, log)

    def await_serving(self) -> float:
        """Wait until it serves; return when that was known, as ``time.perf_counter`` tells it.

        Raises:
            SpeculantError: it did not start.
        """
        assert self._process is not None
        return await_health(self._process, self.address, interval_s=_HEALTH_INTERVAL_S, complaint=self._last_message)

    def pause(self) -> None:
        """Have the system run it no more, and wait until it does not."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        deadline_s = time.monotonic() + _SIGNAL_PATIENCE_S
        while self._process_info().status() != psutil.STATUS_STOPPED and time.monotonic() < deadline_s:
            time.sleep(0.001)

    def go_on(self) -> None:
        """Let it run again."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it at once."""
        if self._process is not None:
            process, self._process = self._process, None
            kill(process)

    @property
    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def resident_bytes(self) -> int:
        """Its memory, mapped files included; 0 if it has ended."""
        return int(self._process_info().memory_info().rss) if self.is_alive else 0

    @property
    def num_descriptors(self) -> int:
        """Its open files and connections; 0 if it has ended."""
        return int(self._process_info().num_fds()) if self.is_alive else 0

    @property
    def logged_errors(self) -> list[str]:
        """Errors that it logged; what gRPC's own core says of a connection is none."""
        return [line for line in self._logged_lines() if line.startswith("{")]

    def metrics(self) -> dict[str, float]:
        """Return its metrics by name and labels, as ``ended_sessions_total{reason="memory"}``.

        Raises:
            SpeculantError: it does not answer.
        """
        try:
            with urllib.request.urlopen(self._metrics, timeout=_METRICS_TIMEOUT_S) as answer:
                lines = answer.read().decode().splitlines()
        except OSError as error:
            raise SpeculantError(f"the drafter's metrics don't answer; {self._last_message()}") from error
        told = [line.removeprefix(_METRIC_PREFIX).rpartition(" ") for line in lines if not line.startswith("#")]
        return {name: float(value) for name, _, value in told}

    def _process_info(self) -> psutil.Process:
        assert self._process is not None
        return psutil.Process(self._process.pid)

    def _last_message(self) -> str:
        lines = self._logged_lines()
        return f"its last message: {lines[-1]}" if lines else "it said nothing"

    def _logged_lines(self) -> list[str]:
        return [line for line in self._log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]


@contextmanager
def running_drafter(stage: Stage, arguments: Sequence[str] = (), graph: Path | None = None) -> Iterator[FaultyServer]:
    """Run a drafter inside of the block and wait until it serves; it is killed at the end, stopped or not.

    Args:
        stage: folder and graph.
        arguments: more flags of the drafter.
        graph: serve this file instead of the stage's.

    Raises:
        SpeculantError: it does not start.
    """
    server = FaultyServer(stage.folder, graph or stage.path, arguments)
    try:
        server.start()
        server.await_serving()
        yield server
    finally:
        server.kill()
