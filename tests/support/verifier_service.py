"""The verifier's gRPC service in this process, on a socket, with the demo's model."""

from __future__ import annotations

import asyncio

import grpc

from speculant_graph.client import LocalDrafter
from speculant_graph.config import AccessConfig, DraftConfig, GenerationConfig, ServiceConfig, VerifierConfig
from speculant_graph.rpc.v1 import verifier_pb2 as pb
from speculant_graph.rpc.v1.verifier_pb2_grpc import VerifierServiceStub
from speculant_verifier.decoder import SpeculativeDecoder
from speculant_verifier.demo.run import MODEL_FOLDER
from speculant_verifier.model import TargetModel
from speculant_verifier.service.server import VerifierServer

PROMPT = "def wrap(self, text):\n"
NUM_TOKENS = 10
"""Default number of tokens of a request."""
DRAFT = DraftConfig(k=6, strategy="tree")
VERIFIER = VerifierConfig(max_batch_size=4, measure_costs=False)


def demo_target():
    """Load the model."""
    return TargetModel.load(VerifierConfig(model_name=str(MODEL_FOLDER), device="cpu", num_threads=1))


def plain_decoder(target):
    """Return a decoder without drafts."""
    return SpeculativeDecoder(target=target, verifier_config=VERIFIER, draft_config=DraftConfig(k=0))


def decoder_of(target):
    """Return a decoder with a caller's drafter: its strategy is unknown, so no request gets a warning."""
    return SpeculativeDecoder(
        target=target, verifier_config=VERIFIER, draft_config=DRAFT, drafter=LocalDrafter(None, DRAFT)
    )


def play(target, tmp_path, scenario, make=decoder_of, speculation="auto", file=None, **settings):
    """Serve, and run a scenario of (stub, server); ``file`` is the access file."""
    defaults = GenerationConfig(max_tokens=NUM_TOKENS, speculation=speculation)
    config = ServiceConfig(**{"listen": f"unix://{tmp_path}/v.sock", "http": "", **settings})

    async def everything():
        server = VerifierServer(config, defaults, lambda: make(target), 4, access=AccessConfig(file=file))
        async with server, grpc.aio.insecure_channel(server.addresses[0]) as channel:
            await scenario(VerifierServiceStub(channel), server)

    asyncio.run(asyncio.wait_for(everything(), 120))


async def collected(call):
    """Return all responses of a call, and their text."""
    responses = []
    while (response := await call.read()) is not grpc.aio.EOF:
        responses.append(response)
    return responses, "".join(response.text for response in responses)


def request(**sampling):
    """Return a request to continue the prompt."""
    return pb.GenerateRequest(prompt=PROMPT, sampling=pb.SamplingOptions(**sampling))
