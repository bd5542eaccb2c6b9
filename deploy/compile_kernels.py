"""Compile the kernels of the installed package into NUMBA_CACHE_DIR: run once, while an image is built.

A sidecar is started on a small graph and asked for drafts by every strategy, as its clients would. Where the verifier
is installed, a graph is built from text and text is generated, too.
"""

from __future__ import annotations

import asyncio
import importlib.util
import tempfile
from pathlib import Path
from typing import get_args

from speculant_drafter.server import DrafterServer
from speculant_graph.client import DrafterClient
from speculant_graph.config import ClientConfig, DraftConfig, ServerConfig
from speculant_graph.graph.builder import build_from_token_ids
from speculant_graph.types import Fingerprint, SequenceStep, StrategyName

_VOCABULARY = 64
_TEXT = [number * number % _VOCABULARY for number in range(2_000)]


def draft(address: str) -> None:
    """Draft a few steps by every strategy, with and without distributions.

    Raises:
        SystemExit: a strategy drafted nothing, so its kernels may not have run.
    """
    for strategy in get_args(StrategyName):
        for wants_proposals in (False, True):
            client = DrafterClient(
                ClientConfig(address=address, deadline_ms=600_000, open_deadline_ms=600_000),
                draft=DraftConfig(strategy=strategy),
                wants_proposals=wants_proposals,
                tokenizer=None,
            )
            client.open(1)
            drafts = [client.draft([SequenceStep(1, tuple(_TEXT[:end]), 8)])[0] for end in range(40, 60)]
            client.close()
            if not any(map(len, drafts)):
                raise SystemExit(f"'{strategy}' drafted nothing: {client.statistics.last_failure}")


def build_and_generate(folder: str) -> None:
    """Build a graph from text, and generate a little with the demo's model."""
    from speculant_graph import GenerationConfig, GraphBuilder, SpeculativeDecoder, VerifierConfig
    from speculant_verifier.demo.run import MODEL_FOLDER

    graph = Path(folder) / "text.pkl"
    GraphBuilder(tokenizer_name=str(MODEL_FOLDER)).build([Path(asyncio.__file__).with_name("futures.py")], graph)
    verifier = VerifierConfig(model_name=str(MODEL_FOLDER), device="cpu", measure_costs=False)
    with SpeculativeDecoder(graph, verifier, DraftConfig(k=16)) as decoder:
        decoder.generate("class Future:\n", GenerationConfig(max_tokens=60, speculation="on"))
        decoder.generate("def main():\n", GenerationConfig(max_tokens=10, temperature=1.0, top_p=0.9))


async def main() -> None:
    """Serve, and draft."""
    with tempfile.TemporaryDirectory() as folder:
        graph = Path(folder) / "graph.pkl"
        build_from_token_ids(_TEXT, Fingerprint("none", "00" * 32, _VOCABULARY), max_order=4).save(graph)
        config = ServerConfig(listen=f"unix://{folder}/drafter.sock", graph=graph)
        async with DrafterServer(config, DraftConfig()) as server:
            await asyncio.to_thread(draft, server.addresses[0])
        if importlib.util.find_spec("torch") is not None:
            await asyncio.to_thread(build_and_generate, folder)


if __name__ == "__main__":
    asyncio.run(main())
