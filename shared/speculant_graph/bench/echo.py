"""Echo servers that benches compare a drafter with: what gRPC, and a socket, take by themselves.

Run as a process: ``python -m speculant_graph.bench.echo grpc|socket ADDRESS``. A message that begins with ``SET`` is
kept, and every message is answered with what was kept, so that as many bytes travel each way as between a client and a
drafter.
"""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

import grpc
import grpc.aio
import uvloop

from speculant_graph.rpc.addresses import grpc_target, socket_path

METHOD = "/speculant_graph.bench.Echo/Stream"
"""The stream of the gRPC echo."""
SET = b"SET"
"""Begins a message that is kept."""

_LENGTH = struct.Struct("<I")
_END_OF_STREAM = grpc.aio.EOF  # type: ignore[attr-defined] # missing in the stubs


@contextmanager
def socket_exchange(address: str) -> Iterator[Callable[[bytes], bytes]]:
    """Connect to a socket echo; yield what sends a message and returns the answer."""
    path = socket_path(address)
    if path is not None:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(path))
    else:
        connection = socket.create_connection(_host_and_port(address))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with connection, connection.makefile("rb") as stream:

        def exchange(payload: bytes) -> bytes:
            _write(connection, payload)
            return _read(stream)

        yield exchange


def _read(stream: BinaryIO) -> bytes:
    """Read a message with its length in front; empty at the end of the connection."""
    head = stream.read(_LENGTH.size)
    return stream.read(*_LENGTH.unpack(head)) if head else b""


def _write(connection: socket.socket, payload: bytes) -> None:
    connection.sendall(_LENGTH.pack(len(payload)) + payload)


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


def _say_ready() -> None:
    sys.stdout.write("ready\n")
    sys.stdout.flush()


async def _serve_grpc(address: str) -> None:
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
    server.add_insecure_port(grpc_target(address))
    await server.start()
    _say_ready()
    await server.wait_for_termination()


def _serve_socket(address: str) -> None:
    path = socket_path(address)
    if path is not None:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        listener.listen()
    else:
        listener = socket.create_server(_host_and_port(address))
    _say_ready()
    while True:
        connection, _ = listener.accept()
        if path is None:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        kept = b""
        with connection, connection.makefile("rb") as stream:
            while payload := _read(stream):
                if payload.startswith(SET):
                    kept = payload[len(SET) :]
                _write(connection, kept)


if __name__ == "__main__":
    kind, address = sys.argv[1:]
    if kind == "grpc":
        uvloop.run(_serve_grpc(address))
    else:
        _serve_socket(address)
