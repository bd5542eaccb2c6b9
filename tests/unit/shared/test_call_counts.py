"""Calls over gRPC are counted by method and by the status that they end with."""

from __future__ import annotations

import asyncio
from collections import Counter

import grpc
import grpc.aio

from speculant_graph.errors import DraftRequestError
from speculant_graph.serving.access import AccessPolicy
from speculant_graph.serving.calls import CallInterceptor


def test_every_call_is_counted_by_how_it_ended(tmp_path):
    interceptor = CallInterceptor(AccessPolicy(), max_concurrent=3)
    began = asyncio.Event()

    async def echo(payload, call):
        if payload == b"wrong":
            raise DraftRequestError("it is wrong; correct it")
        if payload == b"defect":
            raise KeyError("ours")
        return payload

    async def wait(payload, call):
        began.set()
        await asyncio.Event().wait()

    async def scenario():
        server = grpc.aio.server()
        handlers = {"Echo": interceptor.unary("Echo", echo), "Wait": interceptor.answers("Wait", wait)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("s", handlers),))
        server.add_insecure_port(f"unix://{tmp_path}/s.sock")
        await server.start()
        async with grpc.aio.insecure_channel(f"unix://{tmp_path}/s.sock") as channel:
            echoed = channel.unary_unary("/s/Echo")
            for payload in (b"right", b"right", b"wrong", b"defect"):
                await asyncio.gather(echoed(payload), return_exceptions=True)
            waiting = channel.unary_stream("/s/Wait")(b"")
            await began.wait()
            waiting.cancel()
            while len(interceptor.ended) < 4:
                await asyncio.sleep(0.01)
        await server.stop(None)

    asyncio.run(asyncio.wait_for(scenario(), 60))
    assert interceptor.ended == Counter({
        ("Echo", "OK"): 2, ("Echo", "INVALID_ARGUMENT"): 1, ("Echo", "INTERNAL"): 1, ("Wait", "CANCELLED"): 1,
    })  # fmt: skip
