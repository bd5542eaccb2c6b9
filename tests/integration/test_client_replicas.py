"""The blocking client: several threads, several replicas, sidecars that stop and come back."""

from __future__ import annotations

import itertools
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from speculant_graph.client import DrafterClient, LocalDrafter
from speculant_graph.config import ClientConfig, DraftConfig
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.types import Draft, SequenceStep
from support.sidecar import Sidecar, start_sidecar

SESSION_IDS = itertools.count(1)
GIVE_UP_S = 30.0


def make_client(address: str, **settings: object) -> DrafterClient:
    given = {"address": address, "deadline_ms": 5_000.0, "open_deadline_ms": 5_000.0, "probe_interval_ms": 20.0}
    return DrafterClient(ClientConfig.model_validate(given | settings), tokenizer=None, draft=DraftConfig())


def make_steps(graph: NgramGraph, count: int) -> list[SequenceStep]:
    known = [token for token in range(graph.vocabulary_size) if graph.match([token])]
    return [SequenceStep(next(SESSION_IDS), [known[number % len(known)]], 4) for number in range(count)]


def tokens(drafts: list[Draft]) -> list[tuple[int, ...]]:
    return [draft.token_ids for draft in drafts]


def recovered(client: DrafterClient, steps: list[SequenceStep]) -> list[Draft]:
    """Step until every sequence has a draft."""
    give_up_s = time.monotonic() + GIVE_UP_S
    while time.monotonic() < give_up_s:
        drafts = client.draft(steps)
        if all(drafts):
            return drafts
        time.sleep(0.005)
    raise AssertionError(f"no drafts came: {client.statistics}")


def test_threads_share_one_client(shared_sidecar: Sidecar, small_graph: NgramGraph) -> None:
    found: dict[int, list[tuple[int, ...]]] = {}
    steps = make_steps(small_graph, 4)
    with make_client(shared_sidecar.address) as client:

        def decode(step: SequenceStep) -> None:
            client.open(step.session_id)
            text = list(step.token_ids)
            for _ in range(30):
                [draft] = client.draft([SequenceStep(step.session_id, list(text), 4)])
                found.setdefault(step.session_id, []).append(draft.token_ids)
                text += [*draft.token_ids[:2], step.token_ids[0]]
            client.finish(step.session_id)

        threads = [threading.Thread(target=decode, args=[step]) for step in steps]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert client.statistics.steps == 120
        assert client.statistics.failed_steps == 0
    local = LocalDrafter(small_graph, DraftConfig())
    for step in steps:
        text = list(step.token_ids)
        for token_ids in found[step.session_id]:
            assert token_ids == local.draft([SequenceStep(step.session_id, text, 4)])[0].token_ids
            text += [*token_ids[:2], step.token_ids[0]]


def test_two_clients_that_count_alike_do_not_meet(shared_sidecar: Sidecar, small_graph: NgramGraph) -> None:
    first, second = make_steps(small_graph, 2)
    with make_client(shared_sidecar.address) as one, make_client(shared_sidecar.address) as other:
        for _ in range(3):
            assert one.draft([SequenceStep(1, first.token_ids, 4)])[0]
            assert other.draft([SequenceStep(1, second.token_ids, 4)])[0]
        assert one.statistics.reopened_sessions == other.statistics.reopened_sessions == 0


def test_closing_waits_for_nobody_for_long(shared_sidecar: Sidecar, small_graph: NgramGraph) -> None:
    client = make_client(shared_sidecar.address)
    steps = make_steps(small_graph, 3)
    assert all(client.draft(steps))
    client.close()
    client.close()
    client.finish(steps[0].session_id)
    assert client.draft(steps) == [Draft()] * 3
    client.open(next(SESSION_IDS))


@pytest.fixture
def two_sidecars(graph_path: Path, tmp_path: Path) -> Iterator[list[Sidecar]]:
    started = [start_sidecar(graph_path, tmp_path / f"drafter-{number}.sock") for number in range(2)]
    yield started
    for sidecar in started:
        if sidecar.process.poll() is None:
            sidecar.kill()


@pytest.mark.faults
def test_sessions_move_to_the_replica_that_lives_and_new_ones_come_back(
    two_sidecars: list[Sidecar], graph_path: Path, small_graph: NgramGraph
) -> None:
    address = ",".join(sidecar.address for sidecar in two_sidecars)
    steps = make_steps(small_graph, 24)
    with make_client(address) as client:
        before = tokens(client.draft(steps))
        assert all(before)
        assert client.statistics.failovers == 0
        two_sidecars[0].kill()
        drafts = client.draft(steps)
        assert 0 < sum(map(bool, drafts)) < 24  # those of the other replica
        assert client.state == "ok"
        assert tokens(recovered(client, steps)) == before
        moved = client.statistics.failovers
        assert 0 < moved < 24
        two_sidecars[0] = start_sidecar(graph_path, Path(two_sidecars[0].address.removeprefix("unix://")))
        give_up_s = time.monotonic() + GIVE_UP_S
        while client._core.to_probe() and time.monotonic() < give_up_s:
            time.sleep(0.01)
        more = make_steps(small_graph, 24)
        assert all(client.draft([*steps, *more]))
        assert client.statistics.failovers == moved
        two_sidecars[1].kill()
        drafts = client.draft(more)
        assert 0 < sum(map(bool, drafts)) < 24  # some of the new sessions are at the first one again
        assert all(recovered(client, [*steps, *more]))


@pytest.mark.faults
def test_a_stopped_replica_costs_a_few_deadlines_and_moves_its_sessions(
    two_sidecars: list[Sidecar], small_graph: NgramGraph
) -> None:
    address = ",".join(sidecar.address for sidecar in two_sidecars)
    steps = make_steps(small_graph, 24)
    with make_client(address, deadline_ms=200.0) as client:
        before = tokens(recovered(client, steps))
        two_sidecars[0].signal(signal.SIGSTOP)
        for _ in range(3):
            assert 0 < sum(map(bool, client.draft(steps))) < 24
        assert tokens(recovered(client, steps)) == before
        assert client.statistics.failovers > 0
        two_sidecars[0].signal(signal.SIGCONT)


@pytest.mark.faults
def test_a_replica_that_was_never_there_delays_only_its_own_sessions(
    run_sidecar: Callable[..., Sidecar], small_graph: NgramGraph
) -> None:
    sidecar = run_sidecar()
    steps = make_steps(small_graph, 16)
    with make_client(f"{sidecar.address},{sidecar.address}.nobody") as client:
        for step in steps:
            client.open(step.session_id)
        assert tokens(recovered(client, steps)) == tokens(LocalDrafter(small_graph, DraftConfig()).draft(steps))


@pytest.mark.faults
def test_a_server_that_is_killed_again_and_again_costs_drafts_only(
    run_sidecar: Callable[..., Sidecar], small_graph: NgramGraph
) -> None:
    steps = make_steps(small_graph, 8)
    sidecar = run_sidecar()
    with make_client(sidecar.address) as client:
        before = tokens(client.draft(steps))
        for number in range(1, 3):
            sidecar.kill()
            assert not any(client.draft(steps))
            sidecar = run_sidecar()
            assert tokens(recovered(client, steps)) == before
            assert client.statistics.reopened_sessions == 8 * number
