"""A drafter sidecar in a process of its own, for tests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from speculant_graph.config import DraftConfig, ServerConfig
from speculant_graph.rpc.channel import connect_channel

READY_TIMEOUT_S = 240.0
"""Patience with a start; imports are slow on a busy machine, and the first one compiles."""

_PROGRAM = """
import json
import sys
from speculant_drafter.server import run_server
from speculant_drafter.sessions import Limits
from speculant_graph.config import DraftConfig, ServerConfig
from speculant_graph.errors import SpeculantError
from speculant_graph.log import log_to_stderr
config, draft = ServerConfig.model_validate_json(sys.argv[1]), DraftConfig.model_validate_json(sys.argv[2])
limits = Limits(**json.loads(sys.argv[3]))
log_to_stderr(*sys.argv[4:])
try:
    sys.exit(run_server(config, draft, limits))
except SpeculantError as error:
    sys.exit(str(error))
"""


@dataclass
class Sidecar:
    """A running sidecar."""

    process: subprocess.Popen[str]
    address: str
    log_path: Path

    @property
    def log(self) -> str:
        """What it has written to standard error."""
        return self.log_path.read_text(encoding="utf-8")

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
        return self.process.wait(timeout=READY_TIMEOUT_S)


def launch(
    graph_path: Path,
    socket_path: Path,
    draft: Mapping[str, object] | None = None,
    log: Sequence[str] = (),
    limits: Mapping[str, float] | None = None,
    **settings: object,
) -> Sidecar:
    """Start a sidecar without waiting for it.

    Args:
        graph_path: the default graph.
        socket_path: where it listens, unless the settings say otherwise; its log lies beside it.
        draft: fields of DraftConfig.
        log: level and format of its log.
        limits: fields of Limits.
        settings: fields of ServerConfig.
    """
    config = ServerConfig.model_validate({"listen": f"unix://{socket_path}", "graph": graph_path, **settings})
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    arguments = [config.model_dump_json(), DraftConfig.model_validate(draft or {}).model_dump_json()]
    arguments += [json.dumps(limits or {}), *log]
    log_path = socket_path.with_suffix(".log")
    log_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with log_path.open("w", encoding="utf-8") as log_file:  # a pipe would fill up
        process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, *arguments], env=environment, stderr=log_file, text=True
        )
    return Sidecar(process, config.listen, log_path)


def start_sidecar(graph_path: Path, socket_path: Path, **settings: Any) -> Sidecar:
    """Start a sidecar as :func:`launch` does, and wait until its health check says that it serves."""
    sidecar = launch(graph_path, socket_path, **settings)
    wait_until_ready(sidecar)
    return sidecar


def wait_until_ready(sidecar: Sidecar) -> None:
    """Wait until the health check of a sidecar says that it serves."""
    deadline_s = time.monotonic() + READY_TIMEOUT_S
    with connect_channel(sidecar.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        while time.monotonic() < deadline_s:
            if sidecar.process.poll() is not None:
                raise AssertionError(f"the sidecar ended with status {sidecar.process.returncode}: {sidecar.log}")
            try:
                answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=1.0)
                if answer.status == health_pb2.HealthCheckResponse.SERVING:
                    return
            except grpc.RpcError:
                pass
            time.sleep(0.02)
    sidecar.kill()
    raise AssertionError(f"the sidecar was not ready within {READY_TIMEOUT_S:g} s")
