"""A drafter sidecar, or a verifier with the demo's model, in a separate process."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from speculant_graph.config import AccessConfig, DraftConfig, ServerConfig
from speculant_graph.rpc.channel import connect_channel

T = TypeVar("T")

MODEL_FOLDER = Path(__file__).parents[2] / "verifier_client" / "speculant_verifier" / "demo" / "model"
"""Equal to the demo's own constant; importing that one would load torch, which tests of sidecars do not need."""

READY_TIMEOUT_S = 240.0
"""Time limit for a start. Imports are slow on a busy machine, and the first start compiles."""

_SIDECAR = """
import json
import sys
from speculant_drafter.server import DrafterServer
from speculant_drafter.sessions import Limits
from speculant_graph.config import AccessConfig, DraftConfig, ServerConfig
from speculant_graph.errors import SpeculantError
from speculant_graph.log import log_to_stderr
from speculant_graph.serving.process import serve_until_stopped
kinds = (ServerConfig, DraftConfig, AccessConfig)
configs = [kind.model_validate_json(text) for kind, text in zip(kinds, sys.argv[1:])]
limits = Limits(**json.loads(sys.argv[4]))
log_to_stderr(*sys.argv[5:])
try:
    serve_until_stopped(lambda: DrafterServer(*configs, limits=limits), "drafter")
except SpeculantError as error:
    sys.exit(str(error))
"""
_VERIFIER = ("-m", "speculant_graph.cli.main", "verifier")
_VERIFIER_READY = re.compile(r"verifier ready on (?P<grpc>.*), (?P<url>https?://[^\s;]+)")


@dataclass
class Sidecar:
    """A running server: its process, the address of its gRPC service, and its log."""

    process: subprocess.Popen[str]
    address: str
    log_path: Path

    @property
    def log(self) -> str:
        """Its standard error so far."""
        return self.log_path.read_text(encoding="utf-8")

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to it."""
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


@dataclass
class Verifier(Sidecar):
    """A running verifier."""

    url: str
    """URL of its HTTP API, ending in /v1."""

    @property
    def metrics(self) -> dict[str, float]:
        """Return its metrics: values by name and labels."""
        return scraped(f"{self.url.removesuffix('/v1')}/metrics")


def _start(command: Sequence[str], log_path: Path, **options: Any) -> subprocess.Popen[str]:
    log_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with log_path.open("w", encoding="utf-8") as log_file:  # a pipe would fill up
        return subprocess.Popen([sys.executable, *command], stderr=log_file, text=True, **options)


def _until_ready(process: subprocess.Popen[str], log_path: Path, ask: Callable[[], T | None]) -> T:
    """Call ``ask`` until it returns an answer, and return the answer."""
    give_up_s = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < give_up_s:
        if answer := ask():
            return answer
        assert process.poll() is None, f"it ended with status {process.returncode}: {log_path.read_text('utf-8')}"
        time.sleep(0.02)
    process.kill()
    raise AssertionError(f"it was not ready within {READY_TIMEOUT_S:g} s")


def launch(
    graph_path: Path,
    socket_path: Path,
    draft: Mapping[str, object] | None = None,
    access: Mapping[str, object] | None = None,
    log: Sequence[str] = (),
    limits: Mapping[str, float] | None = None,
    **settings: object,
) -> Sidecar:
    """Start a sidecar without waiting for it.

    Args:
        graph_path: the default graph.
        socket_path: socket to listen on, unless the settings name another address; the log lies next to it.
        draft: fields of DraftConfig.
        access: fields of AccessConfig.
        log: level and format of the log.
        limits: fields of Limits.
        settings: fields of ServerConfig.
    """
    config = ServerConfig.model_validate({"listen": f"unix://{socket_path}", "graph": graph_path, **settings})
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    configs = [config, DraftConfig.model_validate(draft or {}), AccessConfig.model_validate(access or {})]
    arguments = [each.model_dump_json() for each in configs]
    command = ["-c", _SIDECAR, *arguments, json.dumps(limits or {}), *log]
    log_path = socket_path.with_suffix(".log")
    return Sidecar(_start(command, log_path, env=environment), config.listen, log_path)


def start_sidecar(graph_path: Path, socket_path: Path, **settings: Any) -> Sidecar:
    """Start a sidecar like :func:`launch`, and wait until its health check reports that it serves."""
    sidecar = launch(graph_path, socket_path, **settings)
    wait_until_ready(sidecar)
    return sidecar


def wait_until_ready(sidecar: Sidecar) -> None:
    """Wait until the health check of a sidecar reports that it serves."""
    with connect_channel(sidecar.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)

        def serves() -> bool:
            try:
                answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=1.0)
            except grpc.RpcError:
                return False
            return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

        _until_ready(sidecar.process, sidecar.log_path, serves)


@contextmanager
def started_verifier(
    folder: Path,
    *arguments: str,
    name: str = "verifier",
    program: Sequence[str] = _VERIFIER,
    model: Path = MODEL_FOLDER,
) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Start a verifier that listens on a socket in a folder and on a free port; return it and its log.

    Args:
        folder: folder for its socket and its log.
        arguments: further command line arguments.
        name: name of its files.
        program: Python arguments that run the verifier.
        model: the target.
    """
    command = [
        *program, "--model", str(model), "--listen", f"unix://{folder}/{name}.sock", "--http", "127.0.0.1:0",
        "--num-threads", "1", "--no-measure-costs", *arguments,
    ]  # fmt: skip
    process = _start(command, folder / f"{name}.log")
    try:
        yield process, folder / f"{name}.log"
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


@contextmanager
def running_verifier(folder: Path, *arguments: str, **options: Any) -> Iterator[Verifier]:
    """Start a verifier like :func:`started_verifier`, wait until it serves, and end it with SIGTERM."""
    with started_verifier(folder, *arguments, **options) as (process, log_path):
        found = _until_ready(process, log_path, lambda: _VERIFIER_READY.search(log_path.read_text(encoding="utf-8")))
        verifier = Verifier(process, found["grpc"], log_path, found["url"])
        yield verifier
        if process.poll() is None:
            assert verifier.stop() == 0, verifier.log


def scraped(url: str) -> dict[str, float]:
    """Return a process's Prometheus metrics: values by name and labels."""
    samples = [line.rpartition(" ") for line in fetched(url).splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in samples}


def fetched(url: str, body: Any = None) -> str:
    """Return the text of an HTTP response; the request has a JSON body if ``body`` is given."""
    request = urllib.request.Request(url, None if body is None else json.dumps(body).encode())
    request.add_header("content-type", "application/json")
    with urllib.request.urlopen(request, timeout=READY_TIMEOUT_S) as answer:
        return str(answer.read().decode())
