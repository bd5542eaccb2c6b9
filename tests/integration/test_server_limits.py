"""Limits of the sidecar: a request over a limit is refused, with a delay or with advice to send less."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import grpc
import pytest

from speculant_graph.rpc.v1 import drafter_pb2 as pb
from support.server import (
    PATIENCE_S,
    Serve,
    code_of,
    connected,
    refusal,
    retry_delay_s,
    step_of,
)

EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED


def of_sequences(count: int, **fields: Any) -> pb.DraftRequest:
    return pb.DraftRequest(context_lengths=[1] * count, context_tokens=[1] * count, **fields)


@pytest.mark.parametrize(
    ("settings", "allowed", "refused", "said"),
    [
        ({}, of_sequences(256), of_sequences(257), "send at most 256"),
        ({}, step_of(0, [1], budget=2048), step_of(0, [1], budget=2049), "ask for at most 2048"),
        (
            {"max_message_bytes": 1_024},
            step_of(0, [1], budget=8, strategy=pb.STRATEGY_GREEDY),
            step_of(0, [1], budget=400, strategy=pb.STRATEGY_GREEDY),
            "ask for fewer nodes",
        ),
    ],
)
def test_a_step_over_a_limit_is_told_to_be_smaller(
    serve: Serve, settings: dict[str, int], allowed: pb.DraftRequest, refused: pb.DraftRequest, said: str
) -> None:
    server = serve(**settings)
    server.drafter.Draft(allowed)
    error = refusal(server.drafter.Draft, refused)
    assert (error.code(), said in error.details()) == (EXHAUSTED, True), error.details()
    assert retry_delay_s(error) == 0.0, "to wait does not help"
    requests = [pb.StreamDraftRequest(step_id=number, draft=draft) for number, draft in enumerate([refused, allowed])]
    first, second = server.drafter.StreamDraft(iter(requests))
    assert (first.error.code, first.error.message) == (EXHAUSTED.value[0], error.details())
    assert first.error.HasField("retry_delay")
    assert first.error.retry_delay.ToNanoseconds() == 0
    assert second.WhichOneof("outcome") == "draft"


def test_messages_have_a_largest_size(serve: Serve) -> None:
    server = serve(max_message_bytes=2_048)
    fits, does_not = step_of(0, [1] * 400), step_of(0, [1] * 600)
    assert fits.ByteSize() < 2_048 < does_not.ByteSize()
    server.drafter.Draft(fits)
    assert code_of(server.drafter.Draft, does_not) is EXHAUSTED
    server.drafter.Draft(fits)


def test_calls_beyond_the_number_allowed_are_refused_at_once(serve: Serve) -> None:
    server = serve(max_calls=2)
    goes_on = threading.Event()

    def requests() -> Iterator[pb.StreamDraftRequest]:
        yield pb.StreamDraftRequest(step_id=1)
        goes_on.wait(PATIENCE_S)

    with ExitStack() as stack:
        # gRPC would queue calls of one connection; calls of several connections are refused.
        wires = [stack.enter_context(connected(server.address)) for _ in range(3)]
        streams = [wire.drafter.StreamDraft(requests()) for wire in wires[:2]]
        for stream in streams:
            assert next(stream).step_id == 1
        error = refusal(wires[2].drafter.Draft, step_of(0, [1]))
        assert error.code() is EXHAUSTED
        assert (retry_delay_s(error) or 0.0) > 0.0
        assert "2 calls are running" in error.details()
        assert wires[2].health() == 1, "a probe is let in"
        server.admin.ListGraphs(pb.ListGraphsRequest())
        goes_on.set()
        for stream in streams:
            assert list(stream) == []
        wires[2].drafter.Draft(step_of(0, [1]))


def test_sampling_goes_by_the_position_that_is_told(serve: Serve) -> None:
    server, text = serve(), [index % 7 for index in range(20)]

    def drafted(tokens: list[int], position: int) -> list[object]:
        answer = server.drafter.Draft(step_of(0, tokens, position, 8, pb.STRATEGY_SAMPLING, seed=5))
        return [list(answer.draft_tokens), list(answer.candidate_tokens), list(answer.candidate_probabilities)]

    assert drafted(text, 0) == drafted(text[-4:], 16)
    # Positions beyond the last one wrap around to zero.
    assert drafted(text[-4:], (1 << 64) - 4) == drafted(text[-4:], (1 << 64) - 4)
    assert len({str(drafted(text[-4:], position)) for position in range(12)}) > 1


@pytest.mark.parametrize(
    ("fields", "code", "said"),
    [
        ({"strategy": 99}, "UNIMPLEMENTED", "greedy, sampling, adaptive, tree, specexec"),
        ({"sources": 32}, "UNIMPLEMENTED", "sources"),
        ({"max_branches": 65}, "INVALID_ARGUMENT", "max_branches must be less than or equal to 64"),
    ],
)
def test_what_is_not_served_is_refused_by_name(serve: Serve, fields: dict[str, object], code: str, said: str) -> None:
    server, request = serve(), pb.DraftRequest(options=pb.StrategyOptions(**fields))
    error = refusal(server.drafter.Draft, request)
    assert (error.code().name, said in error.details()) == (code, True), error.details()
    (answer,) = server.drafter.StreamDraft(iter([pb.StreamDraftRequest(step_id=4, draft=request)]))
    assert (answer.step_id, answer.error.code, answer.error.message) == (4, error.code().value[0], error.details())
