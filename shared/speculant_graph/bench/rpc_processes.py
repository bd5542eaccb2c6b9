"""The processes of ``speculant bench rpc``: a drafter, a bare gRPC echo and a raw socket echo, each by itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from speculant_graph.bench.processes import HOST, await_health, free_ports, running_module
from speculant_graph.bench.rpc_echo import READY
from speculant_graph.errors import SpeculantError

TransportName = Literal["uds", "tcp"]
"""Unix socket, or TCP on the loopback interface."""


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
    own = authority.issue_cert(HOST)
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
        addresses = [f"{HOST}:{port}" for port in free_ports(len(names))]
    pair = [] if certificate is None else [str(certificate.chain), str(certificate.key)]
    tls = [] if certificate is None else ["--tls-certificate", pair[0], "--tls-key", pair[1]]
    drafter = ["speculant_drafter", "--listen", addresses[0], "--server.graph", str(graph), "--log-level", "WARNING"]
    echo = "speculant_graph.bench.rpc_echo"
    with ExitStack() as stack:
        started = [
            stack.enter_context(running_module(module, arguments))
            for module, *arguments in (
                [*drafter, *tls, *drafter_arguments],
                [echo, "grpc", addresses[1], *pair],
                [echo, "socket", addresses[2]],
            )
        ]
        await_health(started[0], addresses[0], certificate.authority if certificate is not None else None)
        for process in started[1:]:
            assert process.stdout is not None
            if process.stdout.readline().strip() != READY:
                raise SpeculantError("an echo server did not start; its message is above")
        processes = {address: psutil.Process(each.pid) for address, each in zip(addresses, started, strict=True)}
        for each in processes.values():
            if cpu is not None:
                each.cpu_affinity([cpu])
        yield Servers(addresses[0], addresses[1], addresses[2], processes)
