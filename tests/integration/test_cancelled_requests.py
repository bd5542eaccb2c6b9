"""A client that leaves frees its place within one step, over gRPC and HTTP.

The drafter of these tests stops every step until it is let go on, so that steps can be counted exactly.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import grpc
import httpx2
import pytest

from speculant_graph.config import GenerationConfig, ServiceConfig, VerifierConfig
from speculant_graph.rpc.v1 import verifier_pb2 as pb
from speculant_graph.rpc.v1.verifier_pb2_grpc import VerifierServiceStub
from speculant_graph.types import Draft, DrafterStatistics, SequenceStep
from speculant_verifier.decoder import SpeculativeDecoder
from speculant_verifier.service.server import VerifierServer
from support.tiny_models import tiny_gpt_oss

PATIENCE_S = 60.0
LONG = 400
BODY = {"model": "tiny", "prompt": "Once", "max_tokens": LONG, "ignore_eos": True, "stream": True}


class SteppedDrafter:
    """Drafts nothing, and that only when it is let; remembers which sequences took part in each step."""

    state = "ok"

    def __init__(self) -> None:
        self.statistics = DrafterStatistics()
        self.steps: list[set[int]] = []
        self._allowed = threading.Semaphore(0)
        self.is_free = False

    def open(self, session_id: int) -> None: ...

    def draft(self, steps: Sequence[SequenceStep]) -> list[Draft]:
        self.steps.append({step.session_id for step in steps})
        if not self.is_free:
            assert self._allowed.acquire(timeout=PATIENCE_S)
        return [Draft((), ()) for _ in steps]

    def finish(self, session_id: int) -> None: ...

    def close(self) -> None: ...

    def go_on(self) -> None:
        """Let one step go on."""
        self._allowed.release()

    def stop_stopping(self) -> None:
        """Let all steps go on from now on."""
        self.is_free = True
        self._allowed.release()


async def until(holds) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():
            await asyncio.sleep(0.002)


class GrpcClient:
    """Reads texts over gRPC."""

    def __init__(self, server: VerifierServer) -> None:
        self.channel = grpc.aio.insecure_channel(server.addresses[0])

    async def begin(self):
        sampling = pb.SamplingOptions(max_tokens=LONG, ignore_end_tokens=True)
        return VerifierServiceStub(self.channel).Generate(pb.GenerateRequest(prompt="Once", sampling=sampling))

    async def read(self, call) -> None:
        assert await call.read()

    async def leave(self, call) -> None:
        call.cancel()

    async def close(self) -> None:
        await self.channel.close()


class HttpClient:
    """Reads texts over HTTP."""

    def __init__(self, server: VerifierServer) -> None:
        self.client = httpx2.AsyncClient(base_url=f"http://{server.http_address}", timeout=PATIENCE_S)

    async def begin(self):
        task = asyncio.create_task(self._open())
        await asyncio.sleep(0)
        return task

    async def _open(self):
        request = self.client.build_request("POST", "/v1/completions", json=BODY)
        return await self.client.send(request, stream=True)

    async def read(self, task) -> None:
        assert (await task).status_code == 200  # the first step has been done; not every step has text

    async def leave(self, task) -> None:
        if task.done():
            await task.result().aclose()
        else:
            task.cancel()

    async def close(self) -> None:
        await self.client.aclose()


@pytest.mark.parametrize("kind", [GrpcClient, HttpClient])
def test_a_client_that_leaves_frees_its_place_within_a_step(kind, tmp_path):
    drafter = SteppedDrafter()
    verifier = VerifierConfig(max_batch_size=1, measure_costs=False, num_threads=1)

    def make() -> SpeculativeDecoder:
        return SpeculativeDecoder(target=tiny_gpt_oss(), verifier_config=verifier, drafter=drafter)

    async def play() -> None:
        config = ServiceConfig(listen=f"unix://{tmp_path}/v.sock", http="127.0.0.1:0", model_id="tiny")
        async with VerifierServer(config, GenerationConfig(), make, 1) as server:
            client = kind(server)
            try:
                leaving = await client.begin()
                await until(lambda: len(drafter.steps) == 1)
                waiting = await client.begin()
                await until(lambda: server._load.num_sequences == 2)
                for number in range(2, 6):
                    drafter.go_on()
                    await until(lambda number=number: len(drafter.steps) == number)
                await client.read(leaving)
                assert len(set.union(*drafter.steps)) == 1  # there is one place, and the other one waits for it
                await client.leave(leaving)
                await until(lambda: server._load.num_sequences == 1)  # the server has noticed, in the midst of a step
                assert len(drafter.steps) == 5
                drafter.go_on()
                await until(lambda: len(drafter.steps) == 6)
                assert drafter.steps[5].isdisjoint(drafter.steps[4])
                drafter.go_on()
                await client.read(waiting)
                await client.leave(waiting)
            finally:
                drafter.stop_stopping()
                await client.close()

    asyncio.run(asyncio.wait_for(play(), PATIENCE_S * 2))
