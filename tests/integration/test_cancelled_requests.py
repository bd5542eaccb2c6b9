"""A client that disconnects frees its row within one step.

The drafter of these tests blocks every step until the test releases it, so the test can count steps exactly.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import grpc

from speculant_graph.config import GenerationConfig, ServiceConfig, VerifierConfig
from speculant_graph.rpc.v1 import verifier_pb2 as pb
from speculant_graph.rpc.v1.verifier_pb2_grpc import VerifierServiceStub
from speculant_graph.types import Draft, SequenceStep
from speculant_verifier.decoder import SpeculativeDecoder
from speculant_verifier.service.server import VerifierServer
from support.drafters import ScriptedDrafter, chain
from support.tiny_models import tiny_gpt_oss

PATIENCE_S = 60.0
LONG = 400


class SteppedDrafter(ScriptedDrafter):
    """Blocks each step until it is released, then drafts nothing; records the sequences of each step."""

    def __init__(self) -> None:
        super().__init__(lambda _: chain([]))
        self.steps: list[set[int]] = []
        self._allowed = threading.Semaphore(0)
        self.is_free = False

    def draft(self, steps: Sequence[SequenceStep]) -> list[Draft]:
        self.steps.append({step.session_id for step in steps})
        if not self.is_free:
            assert self._allowed.acquire(timeout=PATIENCE_S)
        return super().draft(steps)

    def go_on(self) -> None:
        """Release one step."""
        self._allowed.release()

    def stop_stopping(self) -> None:
        """Release all further steps."""
        self.is_free = True
        self._allowed.release()


async def until(holds) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():
            await asyncio.sleep(0.002)


def test_a_client_that_leaves_frees_its_place_within_a_step(tmp_path):
    drafter = SteppedDrafter()
    verifier = VerifierConfig(max_batch_size=1, measure_costs=False, num_threads=1)
    sampling = pb.SamplingOptions(max_tokens=LONG, ignore_end_tokens=True)
    wanted = pb.GenerateRequest(prompt="Once", sampling=sampling)

    def make() -> SpeculativeDecoder:
        return SpeculativeDecoder(target=tiny_gpt_oss(), verifier_config=verifier, drafter=drafter)

    async def play() -> None:
        config = ServiceConfig(listen=f"unix://{tmp_path}/v.sock", http="")
        async with (
            VerifierServer(config, GenerationConfig(), make, 1) as server,
            grpc.aio.insecure_channel(server.addresses[0]) as channel,
        ):
            stub = VerifierServiceStub(channel)
            try:
                leaving = stub.Generate(wanted)
                await until(lambda: len(drafter.steps) == 1)
                waiting = stub.Generate(wanted)
                await until(lambda: server._load.num_sequences == 2)
                for number in range(2, 6):
                    drafter.go_on()
                    await until(lambda number=number: len(drafter.steps) == number)
                assert await leaving.read()
                assert len(set.union(*drafter.steps)) == 1  # there is one row, and the other request waits
                leaving.cancel()
                await until(lambda: server._load.num_sequences == 1)  # noticed during a step
                assert len(drafter.steps) == 5
                drafter.go_on()
                await until(lambda: len(drafter.steps) == 6)
                assert drafter.steps[5].isdisjoint(drafter.steps[4])
                drafter.go_on()
                assert await waiting.read()
                waiting.cancel()
            finally:
                drafter.stop_stopping()

    asyncio.run(asyncio.wait_for(play(), PATIENCE_S * 2))
