"""The processes of ``speculant bench rpc``: a drafter, a bare gRPC echo and a raw socket echo, each by itself."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil
from grpc_health.v1 import health_pb2, health_pb2_grpc

from speculant_graph.bench.rpc_echo import READY
from speculant_graph.config import ClientConfig
from speculant_graph.errors import SpeculantError
from speculant_graph.rpc.channel import connect_channel

TransportName = Literal["uds", "tcp"]
"""Unix socket, or TCP on the loopback interface."""

_PATIENCE_S = 120.0
_STOP_S = 10.0
_HOST = "localhost"


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate made for one run."""

    chain: Path
    """PEM."""
    key: Path
    """PEM."""
    authority: Path
    """PEM of who signed it."""


@dataclass(frozen=True, slots=True)
class Servers:
    """Running servers of one transport, by address."""

    drafter: str
    """The drafter."""
    echo: str
    """The gRPC echo."""
    socket: str
    """The socket echo."""
    processes: dict[str, psutil.Process]
    """By address."""


def make_certificate(folder: Path) -> Certificate:
    """Make a certificate for this machine, signed by an authority of its own."""
    import trustme

    authority = trustme.CA()
    own = authority.issue_cert(_HOST)
    certificate = Certificate(folder / "chain.pem", folder / "key.pem", folder / "authority.pem")
    certificate.chain.write_bytes(b"".join(blob.bytes() for blob in own.cert_chain_pems))
    certificate.key.write_bytes(own.private_key_pem.bytes())
    certificate.authority.write_bytes(authority.cert_pem.bytes())
    return certificate


@contextmanager
def running_servers(
    transport: TransportName,
    graph: Path,
    drafter_arguments: Sequence[str],
    folder: Path,
    certificate: Certificate | None,
    cpu: int | None,
) -> Iterator[Servers]:
    """Run the three servers inside of the block.

    Args:
        transport: how they are reached.
        graph: the drafter's graph.
        drafter_arguments: more flags of the drafter.
        folder: for sockets.
        certificate: encrypt what speaks gRPC; None: don't.
        cpu: the core that servers run on; None: any.

    Raises:
        SpeculantError: one does not start.
    """
    names = ("drafter", "echo", "socket")
    if transport == "uds":
        addresses = [f"unix://{folder}/{name}.sock" for name in names]
    else:
        addresses = [f"{_HOST}:{port}" for port in _free_ports(len(names))]
    pair = [] if certificate is None else [str(certificate.chain), str(certificate.key)]
    tls = [] if certificate is None else ["--tls-certificate", pair[0], "--tls-key", pair[1]]
    drafter = ["speculant_drafter", "--listen", addresses[0], "--server.graph", str(graph), "--log-level", "WARNING"]
    echo = "speculant_graph.bench.rpc_echo"
    with ExitStack() as stack:
        started = [
            stack.enter_context(_process(module, arguments))
            for module, *arguments in (
                [*drafter, *tls, *drafter_arguments],
                [echo, "grpc", addresses[1], *pair],
                [echo, "socket", addresses[2]],
            )
        ]
        _await_health(started[0], addresses[0], certificate)
        for process in started[1:]:
            assert process.stdout is not None
            if process.stdout.readline().strip() != READY:
                raise SpeculantError("an echo server did not start; its message is above")
        processes = {address: psutil.Process(each.pid) for address, each in zip(addresses, started, strict=True)}
        for each in processes.values():
            if cpu is not None:
                each.cpu_affinity([cpu])
        yield Servers(addresses[0], addresses[1], addresses[2], processes)


@contextmanager
def _process(module: str, arguments: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments], stdout=subprocess.PIPE, text=True, env={**os.environ}
    )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _await_health(process: subprocess.Popen[str], address: str, certificate: Certificate | None) -> None:
    config = ClientConfig(tls_ca=None if certificate is None else certificate.authority)
    deadline_s = time.monotonic() + _PATIENCE_S
    with connect_channel(address, config) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        while time.monotonic() < deadline_s and process.poll() is None:
            call = stub.Check.future(health_pb2.HealthCheckRequest(), timeout=1.0)
            if call.exception() is None and call.result().status == health_pb2.HealthCheckResponse.SERVING:
                return
            time.sleep(0.05)
    raise SpeculantError("the drafter did not start; its message is above")


def _free_ports(number: int) -> list[int]:
    import socket

    listeners = [socket.create_server((_HOST, 0)) for _ in range(number)]
    ports = [listener.getsockname()[1] for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports
