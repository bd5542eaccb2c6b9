"""The verifier's gRPC service on real sockets: texts, drafting options, refusals, cancelling and draining."""

from __future__ import annotations

import asyncio
import threading

import grpc
import httpx2
import pytest

from speculant_graph.config import GenerationConfig, ServiceConfig
from speculant_graph.errors import TokenizerMismatchError
from speculant_graph.rpc.v1 import verifier_pb2 as pb
from speculant_graph.rpc.v1.verifier_pb2_grpc import VerifierServiceStub
from speculant_verifier.decoder import SpeculativeDecoder
from speculant_verifier.service.server import VerifierServer
from support.access import access_file, entry
from support.drafters import ScriptedDrafter, chain
from support.verifier_service import (
    NUM_TOKENS,
    PROMPT,
    VERIFIER,
    collected,
    decoder_of,
    play,
    request,
)


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 1.2, "top_k": 20, "top_p": 0.9, "seed": 2**62},
        {"max_tokens": 30, "stop_strings": ["\n"]},
        {"max_tokens": 45, "presence_penalty": 1.0, "frequency_penalty": -0.5, "prediction": "self.assertEqual"},
        {"max_tokens": 90, "json_schema": '{"enum": ["residential", "commercial"]}'},
    ],
)
def test_the_text_is_that_of_the_library(target, library, tmp_path, sampling):
    renamed = {{"stop_strings": "stop"}.get(name, name): value for name, value in sampling.items()}
    expected = library.generate(PROMPT, GenerationConfig(**{"max_tokens": NUM_TOKENS, **renamed}))

    async def scenario(stub, _):
        responses, text = await collected(stub.Generate(request(**sampling)))
        assert text == expected.text
        assert [token for each in responses for token in each.token_ids] == list(expected.token_ids)
        last = responses[-1]
        assert pb.FinishReason.Name(last.finish_reason) == f"FINISH_REASON_{expected.finish_reason.upper()}"
        assert all(not each.HasField("statistics") for each in responses[:-1])
        statistics = last.statistics
        assert statistics.num_tokens == len(expected.token_ids)
        assert statistics.num_steps + statistics.num_accepted == statistics.num_tokens
        assert (statistics.num_drafts > 0) == (statistics.num_drafted > 0)
        assert statistics.num_drafts <= statistics.num_steps
        assert statistics.num_from_target_cache == 0
        assert statistics.num_accepted == sum(each.num_accepted for each in responses)
        assert list(statistics.accepted_by_depth) <= list(statistics.drafted_by_depth)

    play(target, tmp_path, scenario)


def test_samples_logprobs_chat_and_seeds(target, library, tmp_path):
    async def scenario(stub, _):
        responses, _text = await collected(stub.Generate(request(num_samples=3, temperature=1.0, seed=7)))
        for sample in range(3):
            tokens = [token for each in responses if each.sample == sample for token in each.token_ids]
            alone = library.generate(PROMPT, GenerationConfig(max_tokens=NUM_TOKENS, temperature=1.0, seed=7 + sample))
            assert tokens == list(alone.token_ids)
        responses, _text = await collected(stub.Generate(request(num_top_logprobs=2)))
        wanted = library.generate(PROMPT, GenerationConfig(max_tokens=NUM_TOKENS, logprobs=2))
        logprobs = [each for response in responses for each in response.logprobs]
        assert [list(each.top_token_ids) for each in logprobs] == [list(each.top_token_ids) for each in wanted.logprobs]
        seeds = set()
        for _ in range(2):  # without a seed, the server draws and returns one
            responses, text = await collected(stub.Generate(request(temperature=1.0)))
            seed = responses[-1].statistics.seed
            seeds.add(seed)
            again = library.generate(PROMPT, GenerationConfig(max_tokens=NUM_TOKENS, temperature=1.0, seed=seed))
            assert again.text == text
        assert len(seeds) == 2

    play(target, tmp_path, scenario)


def test_draining_finishes_texts_and_takes_no_more(target, library, tmp_path):
    async def scenario(stub, server):
        call = stub.Generate(request(max_tokens=30))
        first = await call.read()
        stopping = asyncio.create_task(server.stop())
        _, text = await collected(call)
        assert first.text + text == library.generate(PROMPT, GenerationConfig(max_tokens=30)).text
        await stopping

    play(target, tmp_path, scenario)


def test_keys_are_asked_for(target, tmp_path):
    access = access_file(tmp_path / "access.toml", entry("shop", "key"))

    async def scenario(stub, _):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await collected(stub.Generate(request()))
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        key = (("authorization", "Bearer key"),)
        assert (await collected(stub.Generate(request(), metadata=key)))[0]
        other = pb.GenerateRequest(prompt="a", speculation=pb.SpeculationOptions(tenant="another"))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await collected(stub.Generate(other, metadata=key))
        assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED

    play(target, tmp_path, scenario, file=access)


def test_while_the_model_is_loaded_everybody_is_told_so(target, tmp_path):
    may_load = threading.Event()

    def make():
        assert may_load.wait(60)
        return decoder_of(target)

    async def everything():
        config = ServiceConfig(listen=f"unix://{tmp_path}/v.sock", http="127.0.0.1:0")
        server = VerifierServer(config, GenerationConfig(max_tokens=4), make, 4)
        starting = asyncio.create_task(server.start())
        while not server.http_address:
            await asyncio.sleep(0.01)
        base = f"http://{server.http_address}"
        async with httpx2.AsyncClient(base_url=base) as http, grpc.aio.insecure_channel(server.addresses[0]) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await collected(VerifierServiceStub(channel).Generate(request()))
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            answer = await http.post("/v1/completions", json={"model": "m", "prompt": "x"})
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")
            assert answer.headers["retry-after"]
            health = await http.get("/healthz")
            assert (health.status_code, health.text) == (503, "the model is being loaded\n")
            assert "speculant_verifier_open_sequences 0.0" in (await http.get("/metrics")).text
            may_load.set()
            await starting
            assert (await http.get("/healthz")).text == "ok\n"
            assert (await collected(VerifierServiceStub(channel).Generate(request())))[1]
        await server.stop()

    asyncio.run(asyncio.wait_for(everything(), 120))


def test_a_client_with_graphs_of_its_own_drafts_from_no_other(target, tmp_path):
    entries = [("ann", 'graphs = ["contracts"]'), ("bob", 'graphs = ["contracts", "code"]'), ("cid", "")]
    access = access_file(tmp_path / "access.toml", *(entry(name, name, more) for name, more in entries))

    async def scenario(stub, _):
        async def said(name, graph=""):
            wanted = request()
            wanted.speculation.graph = graph
            try:
                await collected(stub.Generate(wanted, metadata=(("authorization", f"Bearer {name}"),)))
            except grpc.aio.AioRpcError as error:
                return f"{error.code().name} {error.details()}"
            return ""

        assert "no graph 'contracts' in this process" in await said("ann")  # so it was requested
        assert (await said("ann", "code")).startswith("PERMISSION_DENIED")
        assert (await said("bob")).startswith("PERMISSION_DENIED")
        assert "no graph 'code' in this process" in await said("bob", "code")
        assert await said("cid") == ""

    play(target, tmp_path, scenario, file=access)


class UnfitDrafter(ScriptedDrafter):
    """A drafter with another tokenizer."""

    def open(self, session_id):
        raise TokenizerMismatchError("the drafter's tokenizer is another one; build its graph again")


def test_a_drafter_that_does_not_fit_costs_no_text(target, library, tmp_path):
    expected = library.generate(PROMPT, GenerationConfig(max_tokens=NUM_TOKENS)).text

    def make(target):
        drafter = UnfitDrafter(lambda step: chain([]))
        return SpeculativeDecoder(
            target=target, verifier_config=VERIFIER, drafter=drafter, require_same_tokenizer=False
        )

    async def scenario(stub, _):
        for _ in range(3):
            assert (await collected(stub.Generate(request())))[1] == expected

    play(target, tmp_path, scenario, make)
