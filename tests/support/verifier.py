"""A verifier service in a process of its own, with the demo's model, for tests."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from speculant_verifier.demo.run import MODEL_FOLDER
from support.sidecar import READY_TIMEOUT_S

_PROGRAM = ("-m", "speculant_graph.cli.main", "verifier")
_READY = re.compile(r"verifier ready on (?P<grpc>.*), (?P<url>https?://[^\s;]+)")


@dataclass
class Verifier:
    """A running verifier."""

    process: subprocess.Popen[str]
    address: str
    """Of its gRPC service."""
    url: str
    """Of its API over HTTP, with the ending /v1."""
    log_path: Path

    @property
    def log(self) -> str:
        """What it has written to standard error."""
        return self.log_path.read_text(encoding="utf-8")

    @property
    def metrics(self) -> dict[str, float]:
        """What it counts: values by name and labels."""
        return scraped(f"{self.url.removesuffix('/v1')}/metrics")

    def stop(self) -> int:
        """End it with SIGTERM; return its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=READY_TIMEOUT_S)


def scraped(url: str) -> dict[str, float]:
    """Return what a process shows to Prometheus: values by name and labels."""
    samples = [line.rpartition(" ") for line in fetched(url).splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in samples}


def fetched(url: str, body: Any = None) -> str:
    """Return what is at an address, after sending it a JSON body if there is one."""
    request = urllib.request.Request(url, None if body is None else json.dumps(body).encode())
    request.add_header("content-type", "application/json")
    with urllib.request.urlopen(request, timeout=READY_TIMEOUT_S) as answer:
        return str(answer.read().decode())


@contextmanager
def started_verifier(
    folder: Path,
    *arguments: str,
    name: str = "verifier",
    program: Sequence[str] = _PROGRAM,
    model: Path = MODEL_FOLDER,
) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Start a verifier that listens on a socket in a folder and on a free port; give it and its log.

    Args:
        folder: for its socket and its log.
        arguments: more of its command line.
        name: of its files.
        program: what Python runs.
        model: the target.
    """
    command = [
        sys.executable, *program, "--model", str(model),
        "--listen", f"unix://{folder}/{name}.sock", "--http", "127.0.0.1:0", "--num-threads", "1",
        "--no-measure-costs", *arguments,
    ]  # fmt: skip
    log_path = folder / f"{name}.log"
    with log_path.open("w", encoding="utf-8") as log_file:
        process = subprocess.Popen(command, stderr=log_file, text=True)
    try:
        yield process, log_path
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


@contextmanager
def running_verifier(
    folder: Path, *arguments: str, name: str = "verifier", model: Path = MODEL_FOLDER
) -> Iterator[Verifier]:
    """Do the same, wait until it serves, and end it with SIGTERM."""
    with started_verifier(folder, *arguments, name=name, model=model) as (process, log_path):
        found = _wait_until_ready(process, log_path)
        verifier = Verifier(process, found["grpc"], found["url"], log_path)
        yield verifier
        if process.poll() is None:
            assert verifier.stop() == 0, verifier.log


def _wait_until_ready(process: subprocess.Popen[str], log_path: Path) -> re.Match[str]:
    give_up_s = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < give_up_s:
        text = log_path.read_text(encoding="utf-8")
        if found := _READY.search(text):
            return found
        assert process.poll() is None, f"the verifier ended with status {process.returncode}: {text}"
        time.sleep(0.02)
    raise AssertionError(f"the verifier was not ready within {READY_TIMEOUT_S:g} s")
