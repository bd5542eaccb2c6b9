"""Several replicas, and sidecars that die, stop and come back."""

from __future__ import annotations

import asyncio
import itertools
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from speculant_graph.client import AsyncDrafterClient, DrafterClient, LocalDrafter
from speculant_graph.config import ClientConfig, DraftConfig
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.types import Draft, SequenceStep
from support.sidecar import Sidecar, start_sidecar

pytestmark = pytest.mark.faults

GREEDY = DraftConfig(strategy="greedy")
"""Whose drafts say nothing of what the sidecar has learned."""

SESSION_IDS = itertools.count(1)
GIVE_UP_S = 30.0
PATIENT = {"deadline_ms": 5_000.0, "open_deadline_ms": 5_000.0, "probe_interval_ms": 20.0}


def make_client(address: str, **settings: object) -> DrafterClient:
    config = ClientConfig.model_validate({"address": address, **PATIENT, **settings})
    return DrafterClient(config, tokenizer=None, draft=GREEDY)


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


@pytest.fixture
def two_sidecars(graph_path: Path, tmp_path: Path) -> Iterator[list[Sidecar]]:
    started = [start_sidecar(graph_path, tmp_path / f"drafter-{number}.sock") for number in range(2)]
    yield started
    for sidecar in started:
        if sidecar.process.poll() is None:
            sidecar.kill()


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


def test_a_replica_that_was_never_there_delays_only_its_own_sessions(
    run_sidecar: Callable[..., Sidecar], small_graph: NgramGraph
) -> None:
    sidecar = run_sidecar()
    steps = make_steps(small_graph, 16)
    with make_client(f"{sidecar.address},{sidecar.address}.nobody") as client:
        for step in steps:
            client.open(step.session_id)
        assert tokens(recovered(client, steps)) == tokens(LocalDrafter(small_graph, GREEDY).draft(steps))


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


def test_the_asyncio_client_uses_a_killed_server_again(
    run_sidecar: Callable[..., Sidecar], small_graph: NgramGraph
) -> None:
    sidecar = run_sidecar()
    [step] = make_steps(small_graph, 1)
    config = ClientConfig.model_validate({"address": sidecar.address, **PATIENT})

    async def run() -> None:
        async with AsyncDrafterClient(config, tokenizer=None, draft=GREEDY) as client:
            [before] = await client.draft([step])
            assert before
            sidecar.kill()
            for _ in range(20):
                assert not (await client.draft([step]))[0]
                await asyncio.sleep(0.005)
            await asyncio.to_thread(run_sidecar)
            for _ in range(1_000):
                [after] = await client.draft([step])
                if after:
                    break
                await asyncio.sleep(0.01)
            assert after.token_ids == before.token_ids
            assert client.statistics.reopened_sessions == 1

    asyncio.run(run())
