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

HOST = "localhost"
"""Name of the loopback interface."""

_PATIENCE_S = 300.0
_STOP_S = 10.0
_CHECK_TIMEOUT_S = 1.0


def start_module(
    module: str, arguments: Sequence[str], environment: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """Start a module as a program; its messages go to this process's standard error.

    Args:
        module: its name.
        arguments: its command line.
        environment: variables besides those of this process.
    """
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environment or {})},
        start_new_session=True,  # Ctrl-C is the bench's own, which ends what it started
    )


def stop(process: subprocess.Popen[str]) -> None:
    """End a process gently, and if that takes too long at once."""
    process.terminate()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        kill(process)
    _close_output(process)


def kill(process: subprocess.Popen[str]) -> None:
    """End a process at once, even a stopped one."""
    process.kill()
    process.wait()
    _close_output(process)


@contextmanager
def running_module(
    module: str, arguments: Sequence[str], environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Run a module as a program inside of the block; see :func:`start_module`."""
    process = start_module(module, arguments, environment)
    try:
        yield process
    finally:
        stop(process)


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
    deadline_s = time.monotonic() + _PATIENCE_S
    path = socket_path(address)
    while path is not None and not _accepts(path) and time.monotonic() < deadline_s and process.poll() is None:
        time.sleep(interval_s)  # a channel that is refused would wait before it connects again
    with connect_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        while time.monotonic() < deadline_s and process.poll() is None:
            try:
                answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=_CHECK_TIMEOUT_S)
                if answer.status == health_pb2.HealthCheckResponse.SERVING:
                    return time.perf_counter()
            except grpc.RpcError:
                pass
            time.sleep(interval_s)
    raise SpeculantError("a server did not start; its message is above")


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback interface that are free."""
    listeners = [socket.create_server((HOST, 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports


def _accepts(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(_CHECK_TIMEOUT_S)
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


def _close_output(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    process.stdout.close()
