"""Several workers on one machine, and the supervisor that keeps them alive.

A worker is a process of its own. The supervisor spawns them and never imports gRPC, which does not survive in a parent
of processes. It knows of a worker only what the operating system tells, and one line if it could not start.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import connection, get_context, parent_process, resource_tracker
from multiprocessing.context import SpawnProcess

from loguru import logger

from speculant_drafter.worker_config import worker_configs
from speculant_graph.config import DraftConfig, ServerConfig
from speculant_graph.errors import ConfigError, SpeculantError
from speculant_graph.log import LogFormat
from speculant_graph.machine import num_cores

WorkerTarget = Callable[[str, str, str, LogFormat, int], int]
"""What a worker runs: (ServerConfig as JSON, DraftConfig as JSON, log level, log format, index) -> exit status.
It returns after SIGTERM. Its module must not import gRPC by itself, as the supervisor imports it, too."""

_FIRST_DELAY_S, _MAX_DELAY_S = 0.1, 5.0
_SOUND_LIFE_S = 60.0
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_SIGNALS = (*_STOP_SIGNALS, signal.SIGHUP)


def supervise(
    config: ServerConfig,
    draft: DraftConfig,
    start: WorkerTarget,
    *,
    log_level: str = "INFO",
    log_format: LogFormat = "text",
) -> int:
    """Run ``config.workers`` workers until SIGTERM or SIGINT; only in the main thread.

    Both signals reach the workers as SIGTERM, and SIGHUP as it is. A worker that ends by itself is started again.

    Args:
        config: settings of the service.
        draft: what requests leave to the server.
        start: what a worker runs.
        log_level: least severe messages of workers.
        log_format: their form.

    Returns:
        The exit status: 0, or 1 if a worker failed while it stopped.

    Raises:
        ConfigError: two would have the same address, or one could not start because of its settings.
        SpeculantError: one could not start.
    """
    if config.workers > 1:
        draft = draft.model_copy(update={"threads": draft.threads or max(1, num_cores() // config.workers)})
    workers = [
        _Worker(index, start, (own.model_dump_json(), draft.model_dump_json(), log_level, log_format, index))
        for index, own in enumerate(worker_configs(config))
    ]
    with _heard_signals() as signals:
        return _Supervisor(workers, signals).run()


@contextmanager
def _heard_signals() -> Iterator[socket.socket]:
    """Give a socket in which the numbers of signals arrive, so that they can be waited for together with ends."""
    reader, writer = socket.socketpair()
    with reader, writer:
        reader.setblocking(False)
        writer.setblocking(False)
        handlers = {number: signal.signal(number, lambda *_: None) for number in _SIGNALS}
        previous_descriptor = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        try:
            yield reader
        finally:
            signal.set_wakeup_fd(previous_descriptor)
            for number, handler in handlers.items():
                signal.signal(number, handler)


class Backoff:
    """How long to wait before a worker is started again."""

    def __init__(self) -> None:
        self._delay_s = _FIRST_DELAY_S

    def next_delay_s(self, life_s: float) -> float:
        """Return the wait after a life of so many seconds: longer every time, short again after a sound one."""
        if life_s >= _SOUND_LIFE_S:
            self._delay_s = _FIRST_DELAY_S
        delay_s = self._delay_s
        self._delay_s = min(2 * delay_s, _MAX_DELAY_S)
        return delay_s


class _Worker:
    """One worker through all its lives."""

    def __init__(self, index: int, start: WorkerTarget, arguments: tuple[str, str, str, LogFormat, int]) -> None:
        self.index = index
        self.process: SpawnProcess | None = None
        self.starts_at_s = 0.0
        self.lives = 0
        self._start = start
        self._arguments = arguments
        self._backoff = Backoff()
        self._born_s = 0.0
        self._reports: connection.Connection[object, str] | None = None

    def spawn(self) -> None:
        """Start its process."""
        context = get_context("spawn")
        self._reports, report = context.Pipe(duplex=False)
        process = context.Process(
            target=_run_worker, args=(self._start, self._arguments, report), name=f"worker-{self.index}"
        )
        # It is born with signals held back, so that none ends it before it says what they mean.
        previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)
            report.close()
        self.process, self._born_s = process, time.monotonic()
        self.lives += 1

    def send(self, number: int) -> None:
        """Send it a signal, if it lives."""
        if self.process is not None and self.process.pid is not None and self.process.exitcode is None:
            os.kill(self.process.pid, number)

    def bury(self) -> tuple[int, str]:
        """Return the exit status of its ended process and why it could not start, if it said so."""
        assert self.process is not None
        assert self._reports is not None
        self.process.join()
        status = self.process.exitcode
        assert status is not None
        with self._reports:
            try:
                reason = self._reports.recv() if self._reports.poll() else ""
            except EOFError:
                reason = ""
        self.process.close()
        self.process = None
        now_s = time.monotonic()
        self.starts_at_s = now_s + self._backoff.next_delay_s(now_s - self._born_s)
        return status, reason


class _Supervisor:
    def __init__(self, workers: list[_Worker], signals: socket.socket) -> None:
        self._workers = workers
        self._signals = signals
        self._is_stopping = False
        self._status = 0
        self._failure: SpeculantError | None = None

    def run(self) -> int:
        """See :func:`supervise`."""
        # Started by the first process otherwise, which would let the signals through that are held back for it.
        resource_tracker.ensure_running()
        try:
            while not self._is_stopping or self._living():
                self._start_due()
                connection.wait([self._signals, *self._living()], self._pause_s())
                self._heed_signals()
                self._bury_ended()
        finally:
            for worker in self._workers:  # some live only if the supervisor itself failed
                worker.send(signal.SIGTERM)
        if self._failure is not None:
            raise self._failure
        return self._status

    def _living(self) -> dict[int, _Worker]:
        return {worker.process.sentinel: worker for worker in self._workers if worker.process is not None}

    def _start_due(self) -> None:
        for worker in self._workers:
            if worker.process is None and not self._is_stopping and worker.starts_at_s <= time.monotonic():
                worker.spawn()

    def _pause_s(self) -> float | None:
        waits = [worker.starts_at_s for worker in self._workers if worker.process is None and not self._is_stopping]
        return max(0.0, min(waits) - time.monotonic()) if waits else None

    def _heed_signals(self) -> None:
        try:
            numbers = self._signals.recv(256)
        except BlockingIOError:
            return
        for number in numbers:
            if number in _STOP_SIGNALS:
                self._stop()
            elif number in _SIGNALS:
                self._send(number)

    def _stop(self) -> None:
        self._is_stopping = True
        self._send(signal.SIGTERM)

    def _send(self, number: int) -> None:
        for worker in self._workers:
            worker.send(number)

    def _bury_ended(self) -> None:
        for worker in self._living().values():
            if worker.process is None or worker.process.exitcode is None:
                continue
            status, reason = worker.bury()
            log = logger.bind(worker=worker.index)
            if reason and worker.lives == 1:
                if self._failure is None:
                    self._failure = ConfigError(reason) if status == _CONFIG_STATUS else SpeculantError(reason)
                self._stop()
            elif not self._is_stopping:
                pause_s = worker.starts_at_s - time.monotonic()
                why = f": {reason}" if reason else ""
                log.error(
                    "worker {} {}{}; it starts again in {:.1f} s", worker.index, _ending(status), why, max(0.0, pause_s)
                )
            elif status not in (0, -signal.SIGTERM):  # the latter: it was told to stop before it was ready
                log.error("worker {} {} while it stopped", worker.index, _ending(status))
                self._status = 1


def _ending(status: int) -> str:
    return f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"


_CONFIG_STATUS = 2
"""Exit status for wrong settings, as on the command line."""


def _run_worker(
    start: WorkerTarget,
    arguments: tuple[str, str, str, LogFormat, int],
    report: connection.Connection[str, object],
) -> None:
    """Be a worker: the first function of a spawned process."""
    # Ctrl-C reaches the whole group, but the supervisor says when to stop; nor may a reload end one that still starts.
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    threading.Thread(target=_stop_without_supervisor, name="watch-supervisor", daemon=True).start()
    logger.configure(extra={"worker": arguments[-1]})
    try:
        status = start(*arguments)
    except SpeculantError as error:
        report.send(str(error))
        status = _CONFIG_STATUS if isinstance(error, ConfigError) else 1
    sys.exit(status)


def _stop_without_supervisor() -> None:
    supervisor = parent_process()
    assert supervisor is not None
    supervisor.join()
    os.kill(os.getpid(), signal.SIGTERM)
