"""A verifier that ends, or whose drafter does not fit it: what its clients are told."""

from __future__ import annotations

import asyncio

import httpx2

from speculant_graph.config import DraftConfig, GenerationConfig, ServiceConfig, VerifierConfig
from speculant_graph.errors import TokenizerMismatchError
from speculant_verifier.decoder import SpeculativeDecoder
from speculant_verifier.service.server import VerifierServer
from support.drafters import ScriptedDrafter, chain
from support.tiny_models import tiny_gpt_oss

PROMPT = "Once"
VERIFIER = VerifierConfig(max_batch_size=4, measure_costs=False, num_threads=1)


class UnfitDrafter(ScriptedDrafter):
    """A drafter of another tokenizer."""

    def open(self, session_id: int) -> None:
        raise TokenizerMismatchError("the drafter's tokenizer is another one; build its graph again")


def decoder_of(drafter=None, **options):
    return SpeculativeDecoder(target=tiny_gpt_oss(), verifier_config=VERIFIER, drafter=drafter, **options)


def test_answers_that_are_cut_off_are_told_so():
    async def everything():
        config = ServiceConfig(listen="", http="127.0.0.1:0", model_id="m", grace_s=0.05)
        server = VerifierServer(config, GenerationConfig(), decoder_of, 4)
        await server.start()
        body = {"model": "m", "prompt": PROMPT, "max_tokens": 480, "ignore_eos": True}
        async with httpx2.AsyncClient(base_url=f"http://{server.http_address}", timeout=60) as http:
            whole = asyncio.create_task(http.post("/v1/completions", json=body))
            async with http.stream("POST", "/v1/completions", json=body | {"stream": True}) as stream:
                lines = stream.aiter_lines()
                await anext(lines)
                stopping = asyncio.create_task(server.stop())
                rest = [line async for line in lines if line]
            await stopping
            answer = await whole
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "unavailable"
        assert answer.headers["x-request-id"]
        assert '"error"' in rest[-2]
        assert rest[-1] == "data: [DONE]"

    asyncio.run(asyncio.wait_for(everything(), 120))


def test_a_drafter_that_does_not_fit_costs_no_text():
    config = GenerationConfig(max_tokens=20)
    with decoder_of(draft_config=DraftConfig(k=0)) as plain:
        expected = plain.generate(PROMPT, config).text

    async def everything():
        service = ServiceConfig(listen="", http="127.0.0.1:0", model_id="m")
        drafter = UnfitDrafter(lambda step: chain([]))
        server = VerifierServer(service, config, lambda: decoder_of(drafter, must_fit=False), 4)
        async with server, httpx2.AsyncClient(base_url=f"http://{server.http_address}", timeout=60) as http:
            for _ in range(3):
                answer = await http.post("/v1/completions", json={"model": "m", "prompt": PROMPT})
                assert answer.status_code == 200, answer.text
                assert answer.json()["choices"][0]["text"] == expected

    asyncio.run(asyncio.wait_for(everything(), 120))
