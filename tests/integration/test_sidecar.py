"""The sidecar in a process of its own, and its client: what works, and what faults cost."""

from __future__ import annotations

import itertools
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
from loguru import logger

from speculant_graph.client import DrafterClient, LocalDrafter
from speculant_graph.config import ClientConfig, DraftConfig
from speculant_graph.errors import DrafterUnavailableError, TokenizerMismatchError
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.rpc.channel import connect_channel
from speculant_graph.rpc.v1 import drafter_pb2 as pb
from speculant_graph.rpc.v1.drafter_pb2_grpc import DrafterServiceStub
from speculant_graph.types import Draft, Fingerprint, SequenceStep
from support.server import LiveServer, serving
from support.sidecar import Sidecar

PATIENT = {"deadline_ms": 5_000.0, "open_deadline_ms": 5_000.0}
SESSION_IDS = itertools.count(1)


def make_client(
    sidecar: Sidecar | LiveServer, tokenizer: Fingerprint | None = None, **settings: object
) -> DrafterClient:
    strategy, strict = settings.pop("strategy", "greedy"), bool(settings.pop("strict", False))
    config = ClientConfig.model_validate({"address": sidecar.address, "probe_interval_ms": 20.0, **PATIENT, **settings})
    return DrafterClient(
        config, tokenizer=tokenizer, draft=DraftConfig.model_validate({"strategy": strategy}), strict=strict
    )


@pytest.fixture
def stub(shared_sidecar: Sidecar) -> Iterator[DrafterServiceStub]:
    with connect_channel(shared_sidecar.address) as channel:
        yield DrafterServiceStub(channel)


@pytest.fixture
def warnings() -> Iterator[list[str]]:
    messages: list[str] = []
    logger.enable("speculant_graph")
    sink = logger.add(lambda message: messages.append(message.record["level"].name), level="INFO")
    yield messages
    logger.remove(sink)
    logger.disable("speculant_graph")


def equal(first: Draft, second: Draft) -> bool:
    return (
        (first.token_ids, first.parents, first.terminated_early)
        == (second.token_ids, second.parents, second.terminated_early)
        and len(first.proposals) == len(second.proposals)
        and all(
            np.array_equal(one.token_ids, other.token_ids) and np.array_equal(one.probabilities, other.probabilities)
            for one, other in zip(first.proposals, second.proposals, strict=True)
        )
    )


def recovered(client: DrafterClient, step: SequenceStep) -> Draft:
    """Step until a draft comes."""
    give_up_s = time.monotonic() + 20
    while time.monotonic() < give_up_s:
        if client.draft([step])[0]:
            return client.draft([step])[0]
        time.sleep(0.01)
    raise AssertionError(f"no draft came: {client.statistics.last_failure}")


def known_step(graph: NgramGraph, session_id: int) -> SequenceStep:
    """A step that the graph has a draft for."""
    token_id = next(token for token in range(graph.vocabulary_size) if graph.match([token]))
    return SequenceStep(session_id, [token_id], 4)


@pytest.mark.parametrize("strategy", ["greedy", "sampling"])
def test_drafts_over_the_wire_equal_local_ones(shared_sidecar: Sidecar, small_graph: NgramGraph, strategy: str) -> None:
    local = LocalDrafter(small_graph, DraftConfig.model_validate({"strategy": strategy}))
    client = make_client(shared_sidecar, small_graph.metadata.tokenizer, strategy=strategy, strict=True)
    generator = random.Random(3)
    session_ids = [next(SESSION_IDS) for _ in range(3)]
    sequences: dict[int, list[int]] = {session_id: [] for session_id in session_ids}
    num_nodes = 0
    for session_id in session_ids:
        client.open(session_id)
    for round_number in range(20):
        steps = []
        for session_id, token_ids in sequences.items():
            token_ids.extend(generator.randrange(50) for _ in range(generator.randrange(4)))
            steps.append(SequenceStep(session_id, list(token_ids), 6, seed=session_id * 100 + round_number))
        remote_drafts, local_drafts = client.draft(steps), local.draft(steps)
        assert all(map(equal, remote_drafts, local_drafts))
        for step, draft in zip(steps, remote_drafts, strict=True):
            sequences[step.session_id].extend(draft.token_ids[: generator.randrange(4)])
            num_nodes += len(draft)
    assert num_nodes > 0
    assert client.state == "ok"
    assert client.statistics.drafted_nodes == num_nodes
    assert client.statistics.failed_steps == client.statistics.reopened_sessions == 0
    client.close()


def test_long_prompts_are_sent_in_parts(shared_sidecar: Sidecar, small_graph: NgramGraph) -> None:
    client, session_id = make_client(shared_sidecar), next(SESSION_IDS)
    step = SequenceStep(session_id, [index % 50 for index in range(300_000)], 4)
    client.open(session_id)
    (draft,) = client.draft([step])
    assert equal(draft, LocalDrafter(small_graph, DraftConfig(strategy="greedy")).draft([step])[0])
    assert client.statistics.failed_steps == 0
    client.close()


def test_unary_draft_is_stateless(stub: DrafterServiceStub, small_graph: NgramGraph) -> None:
    context = known_step(small_graph, 0).token_ids
    request = pb.DraftRequest(context_lengths=[1], context_tokens=context, node_budgets=[3])
    first, second = stub.Draft(request), stub.Draft(request)
    assert list(first.draft_tokens) == list(second.draft_tokens) != []
    assert list(first.next_positions) == [0]
    assert 0 < first.draft_id < second.draft_id


def test_repeated_and_overlapping_steps_change_nothing(stub: DrafterServiceStub, small_graph: NgramGraph) -> None:
    token_ids = list(known_step(small_graph, 0).token_ids) * 6
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


def test_wrong_tokenizer_names_both(shared_sidecar: Sidecar) -> None:
    client = make_client(shared_sidecar, Fingerprint("mine", "cd" * 32, 50))
    with pytest.raises(TokenizerMismatchError, match=r"mine .*tests/alphabet"):
        client.open(next(SESSION_IDS))
    client.close()


def test_a_token_outside_the_vocabulary_costs_only_its_sequence(
    shared_sidecar: Sidecar, small_graph: NgramGraph
) -> None:
    client = make_client(shared_sidecar)
    good = known_step(small_graph, next(SESSION_IDS))
    drafts = client.draft([SequenceStep(next(SESSION_IDS), [50], 4), good])
    assert [bool(draft) for draft in drafts] == [False, True]
    assert client.state == "ok"
    client.close()


def test_sessions_are_dropped_at_the_limit_and_opened_again(
    graph_path: Path, tmp_path: Path, small_graph: NgramGraph
) -> None:
    with serving(graph_path, tmp_path, max_sessions=1, busy_s=0.0) as server:
        client = make_client(server)
        first, second = known_step(small_graph, next(SESSION_IDS)), known_step(small_graph, next(SESSION_IDS))
        for step in (first, second, first):
            assert client.draft([step])[0]
        assert client.statistics.reopened_sessions == 1
        client.close()


@pytest.mark.faults
def test_a_killed_server_costs_drafts_only_and_is_used_again(
    run_sidecar: Callable[..., Sidecar], small_graph: NgramGraph, warnings: list[str]
) -> None:
    sidecar = run_sidecar()
    client = make_client(sidecar, small_graph.metadata.tokenizer)
    step = known_step(small_graph, next(SESSION_IDS))
    client.open(step.session_id)
    (before,) = client.draft([step])
    sidecar.kill()
    for _ in range(20):
        assert not client.draft([step])[0]
        time.sleep(0.005)
    assert client.state == "unavailable"
    assert client.statistics.failed_steps == 20
    assert warnings == ["WARNING"]

    run_sidecar()
    assert equal(recovered(client, step), before)
    assert client.statistics.reopened_sessions == 1
    assert warnings == ["WARNING", "INFO"]
    client.close()


@pytest.mark.faults
def test_a_stopped_server_costs_a_few_deadlines_and_is_used_again(
    run_sidecar: Callable[..., Sidecar], small_graph: NgramGraph
) -> None:
    sidecar = run_sidecar()
    client = make_client(sidecar, deadline_ms=100.0)
    step = known_step(small_graph, next(SESSION_IDS))
    before = recovered(client, step)
    sidecar.signal(signal.SIGSTOP)
    failed_before, skipped_before = client.statistics.failed_steps, client.statistics.skipped_steps
    for _ in range(200):
        assert not client.draft([step])[0]
        time.sleep(0.002)
    # Three steps wait in vain; the others are not even sent.
    failed = client.statistics.failed_steps - failed_before
    assert failed - (client.statistics.skipped_steps - skipped_before) == 3
    assert failed == 200
    sidecar.signal(signal.SIGCONT)
    assert equal(recovered(client, step), before)
    assert client.statistics.reopened_sessions == 0
    client.close()


def test_strict_clients_raise_where_nobody_answers(tmp_path: Path) -> None:
    nobody = Sidecar(subprocess.Popen(["true"], text=True), f"unix://{tmp_path}/drafter.sock", tmp_path / "log")
    nobody.wait()
    client = make_client(nobody, strict=True)
    with pytest.raises(DrafterUnavailableError, match="UNAVAILABLE"):
        client.open(1)
    client.close()
    relaxed = make_client(nobody)
    relaxed.open(1)
    assert relaxed.state == "unavailable"
    assert not relaxed.draft([SequenceStep(1, [1], 4)])[0]
    relaxed.finish(1)
    relaxed.finish(2)
    relaxed.close()


def test_drafts_go_on_after_a_token_that_the_graph_can_not_know(
    shared_sidecar: Sidecar, small_graph: NgramGraph
) -> None:
    client = make_client(shared_sidecar)
    step = known_step(small_graph, next(SESSION_IDS))
    client.open(step.session_id)
    token_ids = [*step.token_ids, 10**6]
    client.draft([SequenceStep(step.session_id, token_ids, 5)])
    token_ids += step.token_ids
    [draft] = client.draft([SequenceStep(step.session_id, token_ids, 5)])
    assert len(draft) == 5
    client.close()


def test_a_verifier_that_needs_no_distributions_is_sent_none(shared_sidecar: Sidecar, small_graph: NgramGraph) -> None:
    config = ClientConfig.model_validate({"address": shared_sidecar.address, **PATIENT})
    sampling = DraftConfig(strategy="sampling")
    drafts = []
    for wants_proposals in (True, False):
        client = DrafterClient(config, tokenizer=None, draft=sampling, wants_proposals=wants_proposals)
        step = known_step(small_graph, next(SESSION_IDS))
        client.open(step.session_id)
        drafts += client.draft([step])
        client.close()
    assert drafts[0].token_ids == drafts[1].token_ids
    assert len(drafts[0].proposals) == len(drafts[0]) > 0
    assert drafts[1].proposals == ()
