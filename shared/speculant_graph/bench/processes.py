"""Starts the server processes of a bench, and always stops them at its end."""

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
    """Run a module as a program during the ``with`` block; its messages go to this process's standard error.

    Args:
        module: name of the module.
        arguments: command-line arguments.
        environment: additional environment variables.
        is_told: whether to open a pipe to the program's standard input.
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
        start_new_session=True,  # Ctrl-C must reach only the bench, which stops its processes
    )


def stop(process: subprocess.Popen[str]) -> None:
    """Terminate a process, kill it if that takes too long, and close its pipes."""
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
        address: address of the server.
        interval_s: pause between two checks.

    Returns:
        Time of the first SERVING response, by ``time.perf_counter``.

    Raises:
        SpeculantError: the server exited, or takes too long.
    """
    deadline_s = time.monotonic() + _START_S
    path = socket_path(address)
    while time.monotonic() < deadline_s and process.poll() is None:
        if path is not None and not path.exists():
            time.sleep(interval_s)
            continue
        with connect_channel(address) as channel:  # a new channel, because a refused one waits before it reconnects
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
    """A sidecar process that a bench starts, and that it can kill and restart."""

    def __init__(self, graph: Path, address: str, *options: str) -> None:
        """Start the sidecar with additional command-line options, and wait until it serves.

        Raises:
            SpeculantError: the sidecar does not start.
        """
        self._graph, self.address, self._given = graph, address, options
        self.num_kills = 0
        self.start()

    def kill_and_start(self) -> None:
        """Kill the sidecar, and start a new one at the same address a second later."""
        self.kill()
        time.sleep(_RESTART_PAUSE_S)
        self.start()

    def kill(self) -> None:
        """Kill the sidecar."""
        self.process.kill()
        self.num_kills += 1
        self.close()

    def close(self) -> None:
        """Stop the sidecar."""
        stop(self.process)

    def start(self) -> None:
        """Start a sidecar at its address, after any earlier sidecar there has ended, and wait until it serves.

        Raises:
            SpeculantError: the sidecar does not start.
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
    """Return a free port of the loopback interface."""
    with socket.create_server(("localhost", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
