"""Starts the drafter as a process of its own and stops it again."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from speculant_graph.errors import DrafterUnavailableError

_START_LIMIT_S = 300.0


@contextmanager
def running_sidecar(graph: Path, address: str) -> Iterator[subprocess.Popen[bytes]]:
    """Serve ``graph`` at ``address`` from a new process while the block runs.

    Raises:
        DrafterUnavailableError: it did not become ready; its own messages are on standard error.
    """
    command = [sys.executable, "-m", "speculant_drafter", "--listen", address, "--graph", str(graph)]
    process = subprocess.Popen([*command, "--log-level", "WARNING"])
    try:
        _wait_until_ready(process, address)
        yield process
    finally:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_ready(process: subprocess.Popen[bytes], address: str) -> None:
    started = time.monotonic()
    while time.monotonic() < started + _START_LIMIT_S and process.poll() is None:
        # A channel that failed to connect waits before it tries again; a new one connects at once.
        with grpc.insecure_channel(address) as channel:
            try:
                answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=1)
            except grpc.RpcError:
                pass
            else:
                if answer.status == health_pb2.HealthCheckResponse.SERVING:
                    return
        time.sleep(0.02)
    raise DrafterUnavailableError(f"the sidecar at {address} did not become ready; see its messages above")
