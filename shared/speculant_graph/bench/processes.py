"""Servers that a bench runs in processes of their own, and how they are stopped, whatever happens."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from speculant_graph.errors import SpeculantError
from speculant_graph.rpc.addresses import socket_path
from speculant_graph.rpc.channel import connect_channel

_START_S = 300.0
_STOP_S = 10.0
_CHECK_TIMEOUT_S = 1.0
_RESTART_PAUSE_S = 1.0


@contextmanager
def running_module(
    module: str,
    arguments: Sequence[str],
    environment: Mapping[str, str] | None = None,
    *,
    is_told: bool = False,
) -> Iterator[subprocess.Popen[str]]:
    """Run a module as a program inside of the block; its messages go to this process's standard error.

    Args:
        module: its name.
        arguments: its command line.
        environment: variables besides those of this process.
        is_told: open a pipe to its standard input.
    """
    process = _start(module, arguments, environment, stdin=subprocess.PIPE if is_told else None)
    try:
        yield process
    finally:
        stop(process)


def _start(
    module: str,
    arguments: Sequence[str],
    environment: Mapping[str, str] | None = None,
    stdin: int | None = None,
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdin=stdin,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environment or {})},
        start_new_session=True,  # Ctrl-C is the bench's own, which ends what it started
    )


def stop(process: subprocess.Popen[str]) -> None:
    """End a process gently, and if that takes too long at once; its pipes are closed."""
    process.terminate()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def await_health(process: subprocess.Popen[str], address: str, interval_s: float = 0.05) -> float:
    """Wait until the health check of a server reports SERVING.

    Args:
        process: the server.
        address: where it will listen.
        interval_s: pause between two checks.

    Returns:
        The time (of ``time.perf_counter``) when it was known to serve.

    Raises:
        SpeculantError: it ended, or takes too long.
    """
    deadline_s = time.monotonic() + _START_S
    path = socket_path(address)
    while time.monotonic() < deadline_s and process.poll() is None:
        if path is not None and not path.exists():
            time.sleep(interval_s)
            continue
        with connect_channel(address) as channel:  # a new one: one that was refused waits before it connects again
            check = health_pb2_grpc.HealthStub(channel).Check
            try:
                answer = check(health_pb2.HealthCheckRequest(), timeout=_CHECK_TIMEOUT_S)
            except grpc.RpcError:
                pass
            else:
                if answer.status == health_pb2.HealthCheckResponse.SERVING:
                    return time.perf_counter()
        time.sleep(interval_s)
    raise SpeculantError("a server did not start; its message is above")


class OwnDrafter:
    """A sidecar of the bench's own, which can be killed and started again."""

    def __init__(self, graph: Path, address: str, *options: str) -> None:
        """Start it with more options of its command line, and wait until it serves.

        Raises:
            SpeculantError: it does not start.
        """
        self._graph, self.address, self._given = graph, address, options
        self.num_kills = 0
        self.start()

    def kill_and_start(self) -> None:
        """Kill it, and start another in its place a second later."""
        self.kill()
        time.sleep(_RESTART_PAUSE_S)
        self.start()

    def kill(self) -> None:
        """End it at once."""
        self.process.kill()
        self.num_kills += 1
        self.close()

    def close(self) -> None:
        """End it."""
        stop(self.process)

    def start(self) -> None:
        """Start another in its place after it ended, and wait until it serves.

        Raises:
            SpeculantError: it does not start.
        """
        where = ("--listen", self.address, "--graph", str(self._graph))
        arguments = ["drafter", *where, "--log-level", "WARNING", *self._given]
        self.process = _start("speculant_graph.cli.main", arguments)
        try:
            await_health(self.process, self.address)
        except BaseException:
            self.close()
            raise


def free_port() -> int:
    """Return a port of the loopback interface that is free."""
    with socket.create_server(("localhost", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
