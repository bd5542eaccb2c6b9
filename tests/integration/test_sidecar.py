"""The sidecar in a process of its own: its methods as any client calls them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.rpc.channel import connect_channel
from speculant_graph.rpc.v1 import drafter_pb2 as pb
from speculant_graph.rpc.v1.drafter_pb2_grpc import DrafterServiceStub
from support.clients import SESSION_IDS, known_tokens, make_client, make_steps
from support.server import serving
from support.sidecar import Sidecar


@pytest.fixture
def stub(shared_sidecar: Sidecar) -> Iterator[DrafterServiceStub]:
    with connect_channel(shared_sidecar.address) as channel:
        yield DrafterServiceStub(channel)


def test_unary_draft_is_stateless(stub: DrafterServiceStub, small_graph: NgramGraph) -> None:
    context = known_tokens(small_graph)[:1]
    request = pb.DraftRequest(context_lengths=[1], context_tokens=context, node_budgets=[3])
    first, second = stub.Draft(request), stub.Draft(request)
    assert list(first.draft_tokens) == list(second.draft_tokens) != []
    assert list(first.next_positions) == [0]
    assert 0 < first.draft_id < second.draft_id


def test_repeated_and_overlapping_steps_change_nothing(stub: DrafterServiceStub, small_graph: NgramGraph) -> None:
    token_ids = known_tokens(small_graph)[:1] * 6
    disturbed, undisturbed = next(SESSION_IDS), next(SESSION_IDS)
    for session_id in (disturbed, undisturbed):
        stub.OpenSession(pb.OpenSessionRequest(session_id=session_id))

    def step(session_id: int, start: int, end: int) -> pb.DraftResponse:
        answer = stub.Draft(
            pb.DraftRequest(
                session_ids=[session_id],
                positions=[start],
                context_lengths=[end - start],
                context_tokens=token_ids[start:end],
                node_budgets=[5],
                options=pb.StrategyOptions(strategy=pb.STRATEGY_SAMPLING),
                seeds=[9],
            )
        )
        answer.ClearField("server_time")
        answer.ClearField("draft_id")
        return answer

    step(disturbed, 0, 3)
    assert list(step(disturbed, 5, 6).sequence_statuses) == [pb.SEQUENCE_STATUS_OUT_OF_SYNC]
    step(disturbed, 1, 4)
    assert step(disturbed, 0, 6) == step(disturbed, 2, 6) == step(disturbed, 6, 6) == step(undisturbed, 0, 6)


def test_a_failed_step_leaves_the_stream_alive(stub: DrafterServiceStub) -> None:
    bad = pb.DraftRequest(context_lengths=[2], context_tokens=[1])
    unserved = pb.DraftRequest(options=pb.StrategyOptions(strategy=99))
    good = pb.DraftRequest(context_lengths=[1], context_tokens=[1], node_budgets=[0])
    requests = [pb.StreamDraftRequest(step_id=index, draft=draft) for index, draft in enumerate([bad, unserved, good])]
    answers = list(stub.StreamDraft(iter(requests)))
    assert [answer.step_id for answer in answers] == [0, 1, 2]
    assert [answer.error.code for answer in answers] == [
        grpc.StatusCode.INVALID_ARGUMENT.value[0],
        grpc.StatusCode.UNIMPLEMENTED.value[0],
        0,
    ]
    assert "greedy, sampling" in answers[1].error.message
    assert answers[2].WhichOneof("outcome") == "draft"


@pytest.mark.parametrize("method", ["Draft", "OpenSession", "StreamDraft"])
def test_bytes_that_are_no_message_are_refused_without_python_text(shared_sidecar: Sidecar, method: str) -> None:
    path = f"/speculant_graph.rpc.v1.DrafterService/{method}"
    with connect_channel(shared_sidecar.address) as channel:
        if method == "StreamDraft":
            call = channel.stream_stream(path)(iter([b"\xff\xff"]))
        else:
            call = channel.unary_unary(path).future(b"\xff\xff")
        assert call.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "the message can't be parsed" in call.details()


def test_sessions_are_dropped_at_the_limit_and_opened_again(
    graph_path: Path, tmp_path: Path, small_graph: NgramGraph
) -> None:
    with serving(graph_path, tmp_path, max_sessions=1, busy_s=0.0) as server:
        client = make_client(server.address)
        first, second = make_steps(small_graph, 2)
        for step in (first, second, first):
            assert client.draft([step])[0]
        assert client.statistics.reopened_sessions == 1
        client.close()
