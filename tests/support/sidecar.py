"""A drafter sidecar in a process of its own, for tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from speculant_graph.config import ServerConfig
from speculant_graph.rpc.channel import connect_channel

READY_TIMEOUT_S = 30.0
"""Patience with a start; imports are slow on a busy machine."""

_PROGRAM = """
import sys
from speculant_drafter.server import run_server
from speculant_graph.config import DraftConfig, ServerConfig
from speculant_graph.log import log_to_stderr
log_to_stderr()
config = ServerConfig.model_validate_json(sys.argv[1])
sys.exit(run_server(config, DraftConfig()))
"""


@dataclass
class Sidecar:
    """A running sidecar."""

    process: subprocess.Popen[str]
    address: str

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def stop(self) -> int:
        """End it with SIGTERM; return its exit status."""
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        return self.wait()

    def kill(self) -> None:
        """End it with SIGKILL."""
        self.process.kill()
        self.wait()

    def wait(self) -> int:
        """Wait for its end; return its exit status."""
        status = self.process.wait(timeout=READY_TIMEOUT_S)
        if self.process.stderr is not None:
            self.process.stderr.close()
        return status


def launch(graph_path: Path, socket_path: Path, **settings: object) -> Sidecar:
    """Start a sidecar without waiting for it; ``settings`` are fields of ServerConfig."""
    address = f"unix://{socket_path}"
    config = ServerConfig.model_validate({"listen": address, "graph": graph_path, **settings})
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, config.model_dump_json()], env=environment, stderr=subprocess.PIPE, text=True
    )
    return Sidecar(process, address)


def start_sidecar(graph_path: Path, socket_path: Path, **settings: object) -> Sidecar:
    """Start a sidecar and wait until its health check says that it serves."""
    sidecar = launch(graph_path, socket_path, **settings)
    deadline_s = time.monotonic() + READY_TIMEOUT_S
    with connect_channel(sidecar.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        while time.monotonic() < deadline_s:
            if sidecar.process.poll() is not None:
                _, log = sidecar.process.communicate()
                raise AssertionError(f"the sidecar ended with status {sidecar.process.returncode}: {log}")
            try:
                answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=1.0)
                if answer.status == health_pb2.HealthCheckResponse.SERVING:
                    return sidecar
            except grpc.RpcError:
                pass
            time.sleep(0.02)
    sidecar.kill()
    raise AssertionError(f"the sidecar was not ready within {READY_TIMEOUT_S:g} s")
