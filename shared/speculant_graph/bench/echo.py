"""A gRPC echo server that benches compare with a drafter, to measure the cost of gRPC alone.

Run the echo server as a process: ``python -m speculant_graph.bench.echo ADDRESS``. A message that begins with ``SET``
sets the server's reply to this message and to all later ones. With a suitable reply, each direction carries as many
bytes as in an exchange with a drafter.
"""

from __future__ import annotations

import sys
from typing import Any

import grpc
import grpc.aio
import uvloop

from speculant_graph.rpc.addresses import grpc_target

METHOD = "/speculant_graph.bench.Echo/Stream"
"""gRPC path of the echo server's stream method."""
SET = b"SET"
"""Prefix of a message whose remaining bytes become the server's reply."""

_END_OF_STREAM = grpc.aio.EOF  # type: ignore[attr-defined] # missing in the stubs


async def _serve(address: str) -> None:
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
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await server.wait_for_termination()


if __name__ == "__main__":
    uvloop.run(_serve(sys.argv[1]))
