"""What single requests to the verifier's gRPC service may ask for, how others are refused, and their names."""

from __future__ import annotations

import asyncio

import grpc
import httpx2
import pytest

from speculant_graph.client import DrafterClient
from speculant_graph.config import ClientConfig, DraftConfig, GenerationConfig
from speculant_graph.rpc.v1 import verifier_pb2 as pb
from speculant_verifier.decoder import SpeculativeDecoder
from speculant_verifier.demo.run import MODEL_FOLDER
from support.verifier_service import (
    PROMPT,
    VERIFIER,
    collected,
    play,
    request,
)

BAD = {
    "no input": (pb.GenerateRequest(), "INVALID_ARGUMENT", "set prompt, prompt_tokens or chat"),
    "empty": (pb.GenerateRequest(prompt=""), "INVALID_ARGUMENT", "the prompt is empty"),
    "tokens": (
        pb.GenerateRequest(prompt_tokens=pb.TokenSequence(token_ids=[10**6])), "INVALID_ARGUMENT", "outside 0..",
    ),
    "top_p": (request(top_p=1.5), "INVALID_ARGUMENT", "top_p"),
    "NaN": (request(temperature=float("nan")), "INVALID_ARGUMENT", "temperature"),
    "rule": (
        pb.GenerateRequest(prompt="a", speculation=pb.SpeculationOptions(rule=99)), "INVALID_ARGUMENT", "no rule 99",
    ),
    "samples": (request(num_samples=17), "INVALID_ARGUMENT", "may have 16"),
    "stop": (request(stop_strings=[""]), "INVALID_ARGUMENT", "stop text"),
    "bias": (request(logit_biases=[pb.TokenBias(token_id=10**6, bias=1)]), "INVALID_ARGUMENT", "logit_bias"),
    "chat": (
        pb.GenerateRequest(chat=pb.Chat(messages=[pb.ChatMessage(content="x")])), "INVALID_ARGUMENT", "",
    ),
    "graph": (
        pb.GenerateRequest(prompt="a", speculation=pb.SpeculationOptions(graph="x")), "INVALID_ARGUMENT",
        "no graph 'x' in this process",
    ),
    "long stop text": (request(stop_strings=["a" * 1025]), "INVALID_ARGUMENT", "a text of stop_strings is too long"),
    "schema": (request(json_schema="{"), "INVALID_ARGUMENT", "json_schema is no JSON"),
    "forms": (request(json_schema="{}", grammar="b"), "INVALID_ARGUMENT", "json_schema and grammar exclude each other"),
    "length": (pb.GenerateRequest(prompt="a " * 9_000), "INVALID_ARGUMENT", "but the model"),
}  # fmt: skip


def test_what_is_wrong_is_named_and_others_go_on(target, library, tmp_path):
    expected = library.generate(PROMPT, GenerationConfig(max_tokens=20)).text

    async def scenario(stub, server):
        for name, (bad, code, said) in BAD.items():
            other = asyncio.create_task(collected(stub.Generate(request())))
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await collected(stub.Generate(bad))
            assert caught.value.code().name == code, name
            assert said in caught.value.details(), name
            assert (await other)[1] == expected, name
            assert server._load.num_sequences == 0, name

    play(target, tmp_path, scenario)


def test_bytes_that_are_no_message_are_refused(target, tmp_path):
    async def scenario(_, server):
        async with grpc.aio.insecure_channel(server.addresses[0]) as channel:
            path, nonsense = "/speculant_graph.rpc.v1.VerifierService/", b"\xff\xff\xff"
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await collected(channel.unary_stream(f"{path}Generate")(nonsense))
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT

    play(target, tmp_path, scenario)


def test_a_graph_that_the_drafter_does_not_serve_costs_no_text_and_is_told(target, library, shared_sidecar, tmp_path):
    expected = library.generate(PROMPT, GenerationConfig(max_tokens=20)).text
    client = ClientConfig(address=shared_sidecar.address, deadline_ms=5_000)
    draft = DraftConfig(k=4)

    async def scenario(stub, server):
        async with httpx2.AsyncClient(base_url=f"http://{server.http_address}/v1") as http:
            for graph, warning in (
                (
                    "elsewhere",
                    "there were no drafts, as the drafter serves no graph 'elsewhere'; name one that it serves",
                ),
                ("small", ""),
            ):
                wanted = request()
                wanted.speculation.graph = graph
                responses, text = await collected(stub.Generate(wanted))
                assert (text, responses[-1].statistics.warning) == (expected, warning)
                body = {"model": MODEL_FOLDER.name, "prompt": PROMPT, "speculant": {"graph": graph}}
                answer = (await http.post("/completions", json=body)).json()
                assert answer["choices"][0]["text"] == expected
                assert answer["speculant"].get("warning", "") == warning

    with DrafterClient(client, tokenizer=None, draft=draft) as drafter:

        def make(target):
            return SpeculativeDecoder(target=target, verifier_config=VERIFIER, draft_config=draft, drafter=drafter)

        play(target, tmp_path, scenario, make, http="127.0.0.1:0")
