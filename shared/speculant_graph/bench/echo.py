"""A gRPC echo server; benches compare a drafter with it to see the cost of gRPC alone.

Run it as a process: ``python -m speculant_graph.bench.echo ADDRESS``. The server keeps a message that begins with
``SET`` and answers every later message with it. So each direction carries as many bytes as with a drafter.
"""

from __future__ import annotations

import sys
from typing import Any

import grpc
import grpc.aio
import uvloop

from speculant_graph.rpc.addresses import grpc_target

METHOD = "/speculant_graph.bench.Echo/Stream"
"""Path of the stream method."""
SET = b"SET"
"""Prefix of a message that the server keeps as its reply."""

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
