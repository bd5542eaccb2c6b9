"""Echo servers that ``speculant bench rpc`` compares a drafter with: what the transport alone takes.

Run as a process: ``python -m speculant_graph.bench.rpc_echo grpc|socket ADDRESS [CERTIFICATE KEY]``. A message that
begins with ``SET`` is kept, and every other one is answered with what was kept, so that as many bytes travel each way
as between a client and a drafter.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from speculant_graph.rpc.addresses import grpc_target, socket_path

METHOD = "/speculant_graph.bench.Echo/Stream"
"""The stream of the gRPC echo."""
SET = b"SET"
"""Begins a message that is kept."""
READY = "ready"
"""Printed when the server listens."""

_LENGTH = struct.Struct("<I")
_END_OF_STREAM = grpc.aio.EOF  # type: ignore[attr-defined] # missing in the stubs


def read_message(connection: socket.socket) -> bytes:
    """Read a message with its length in front; empty at the end of the connection."""
    head = _read_exactly(connection, _LENGTH.size)
    return _read_exactly(connection, _LENGTH.unpack(head)[0]) if head else b""


def write_message(connection: socket.socket, payload: bytes) -> None:
    """Write a message with its length in front."""
    connection.sendall(_LENGTH.pack(len(payload)) + payload)


def connect(address: str) -> socket.socket:
    """Return a connection to a raw socket echo."""
    path = socket_path(address)
    if path is not None:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(path))
        return connection
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _read_exactly(connection: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        part = connection.recv(size - len(received))
        if not part:
            return b""
        received += part
    return bytes(received)


async def _serve_grpc(address: str, credentials: grpc.ServerCredentials | None) -> None:
    async def echo(_requests: Any, context: Any) -> None:
        kept = b""
        while (payload := await context.read()) is not _END_OF_STREAM:
            if payload.startswith(SET):
                kept = payload[len(SET) :]
            await context.write(kept)

    service, _, method = METHOD.removeprefix("/").partition("/")
    server = grpc.aio.server()
    handler = grpc.stream_stream_rpc_method_handler(echo)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
    if credentials is None:
        server.add_insecure_port(grpc_target(address))
    else:
        server.add_secure_port(grpc_target(address), credentials)
    await server.start()
    sys.stdout.write(f"{READY}\n")
    sys.stdout.flush()
    await server.wait_for_termination()


def _serve_socket(address: str) -> None:
    path = socket_path(address)
    if path is not None:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
    else:
        host, _, port = address.rpartition(":")
        listener = socket.create_server((host, int(port)))
    listener.listen()
    sys.stdout.write(f"{READY}\n")
    sys.stdout.flush()
    while True:
        connection, _ = listener.accept()
        if path is None:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        kept = b""
        with connection:
            while payload := read_message(connection):
                if payload.startswith(SET):
                    kept = payload[len(SET) :]
                write_message(connection, kept)


def main(kind: str, address: str, *pair: str) -> None:
    """Serve until the process is ended."""
    if kind == "socket":
        _serve_socket(address)
        return
    credentials = None
    if pair:
        certificate, key = (Path(path).read_bytes() for path in pair)
        credentials = grpc.ssl_server_credentials([(key, certificate)])
    try:
        import uvloop
    except ModuleNotFoundError:
        asyncio.run(_serve_grpc(address, credentials))
    else:
        uvloop.run(_serve_grpc(address, credentials))


if __name__ == "__main__":
    main(*sys.argv[1:])
