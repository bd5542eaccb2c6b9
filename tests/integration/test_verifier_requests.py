"""Requests to the verifier's gRPC service: their options, refusals, and request ids."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from speculant_graph.client import DrafterClient
from speculant_graph.config import ClientConfig, DraftConfig, GenerationConfig
from speculant_graph.rpc.v1 import verifier_pb2 as pb
from speculant_verifier.decoder import SpeculativeDecoder
from support.verifier_service import (
    NUM_TOKENS,
    PROMPT,
    VERIFIER,
    collected,
    play,
    request,
)


def options(**speculation):
    return pb.GenerateRequest(prompt="a", speculation=pb.SpeculationOptions(**speculation))


BAD = {
    "no input": (pb.GenerateRequest(), "set prompt, prompt_tokens or chat"),
    "tokens": (pb.GenerateRequest(prompt_tokens=pb.TokenSequence(token_ids=[10**6])), "outside 0.."),
    "NaN": (request(temperature=float("nan")), "temperature"),
    "rule": (pb.GenerateRequest(prompt="a", speculation=pb.SpeculationOptions(rule=99)), "no rule 99"),
    "budget": (options(node_budget=7), "node_budget is 7, more than draft.k of 6; give at most 6"),
    "depth": (options(max_depth=25), "max_depth is 25, more than draft.max_depth of 24"),
    "no depth": (options(max_depth=0), "max_depth must be greater than or equal to 1"),
    "temperature": (options(draft_temperature=0.5), "only sampling reads it"),
    "n-grams": (options(draft_n=3), "only nasd reads it"),
    "fillers": (options(draft_filler_top_k=3), "only nasd reads it"),
    "unknown": (options(draft_stop_if_unknown=False), "only nasd reads it"),
    "samples": (request(num_samples=17), "may have 16"),
    "graph": (
        pb.GenerateRequest(prompt="a", speculation=pb.SpeculationOptions(graph="x")),
        "no graph 'x' in this process",
    ),
    "schema": (request(json_schema="{"), "json_schema is not JSON"),
    "answer": (request(max_tokens=10**6), "max_tokens: the prompt ("),
    "length": (pb.GenerateRequest(prompt="a " * 9_000), "but the model"),
}


def test_what_is_wrong_is_named_and_others_go_on(target, library, tmp_path):
    expected = library.generate(PROMPT, GenerationConfig(max_tokens=NUM_TOKENS)).text

    async def scenario(stub, server):
        for name, (bad, said) in BAD.items():
            other = asyncio.create_task(collected(stub.Generate(request())))
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await collected(stub.Generate(bad))
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT, name
            assert said in caught.value.details(), name
            assert (await other)[1] == expected, name
            assert server._load.num_sequences == 0, name

    play(target, tmp_path, scenario)


def test_options_of_drafts_act(target, library, tmp_path):
    expected = library.generate(PROMPT, GenerationConfig(max_tokens=NUM_TOKENS)).text

    async def scenario(stub, _):
        for wanted, most, depth in (({}, 6, 24), ({"node_budget": 2}, 2, 2), ({"max_depth": 1}, 6, 1)):
            asked = request()
            asked.speculation.MergeFrom(pb.SpeculationOptions(**wanted))
            responses, text = await collected(stub.Generate(asked))
            statistics = responses[-1].statistics
            assert text == expected
            assert 0 < statistics.num_drafted <= most * statistics.num_drafts
            assert len(statistics.drafted_by_depth) <= depth

    play(target, tmp_path, scenario, speculation="on")


def test_a_graph_that_the_drafter_does_not_serve_costs_no_text_and_is_told(target, library, shared_sidecar, tmp_path):
    expected = library.generate(PROMPT, GenerationConfig(max_tokens=NUM_TOKENS)).text
    client = ClientConfig(address=shared_sidecar.address, deadline_ms=5_000)
    draft = DraftConfig(k=4)

    async def scenario(stub, _):
        for graph, warning in (
            ("elsewhere", "the drafter serves no graph 'elsewhere'; name one that it serves"),
            ("small", ""),
        ):
            wanted = request()
            wanted.speculation.graph = graph
            responses, text = await collected(stub.Generate(wanted))
            assert text == expected
            said = responses[-1].statistics.warning
            assert said.endswith(warning)
            assert bool(said) == bool(warning)

    with DrafterClient(client, tokenizer=None, draft=draft) as drafter:

        def make(target):
            return SpeculativeDecoder(target=target, verifier_config=VERIFIER, draft_config=draft, drafter=drafter)

        play(target, tmp_path, scenario, make)
