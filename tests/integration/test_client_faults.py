"""Several replicas, and sidecars that are killed, stopped and started again."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from loguru import logger

from speculant_graph.client import LocalDrafter
from speculant_graph.graph.ngrams import NgramGraph
from support.clients import GIVE_UP_S, GREEDY, make_async_client, make_client, make_steps, recovered, tokens
from support.sidecar import Sidecar, start_sidecar

pytestmark = pytest.mark.faults


@pytest.fixture
def two_sidecars(graph_path: Path, tmp_path: Path) -> Iterator[list[Sidecar]]:
    started = [start_sidecar(graph_path, tmp_path / f"drafter-{index}.sock") for index in range(2)]
    yield started
    for sidecar in started:
        if sidecar.process.poll() is None:
            sidecar.kill()


@pytest.fixture
def levels() -> Iterator[list[str]]:
    """The levels of what is logged."""
    found: list[str] = []
    logger.enable("speculant_graph")
    sink = logger.add(lambda message: found.append(message.record["level"].name), level="INFO")
    yield found
    logger.remove(sink)
    logger.disable("speculant_graph")


def test_sessions_move_to_the_replica_that_is_up_and_new_ones_come_back(
    two_sidecars: list[Sidecar], graph_path: Path, small_graph: NgramGraph
) -> None:
    steps = make_steps(small_graph, 24)
    with make_client(",".join(sidecar.address for sidecar in two_sidecars)) as client:
        before = tokens(client.draft(steps))
        assert all(before)
        statistics = client.statistics
        assert (statistics.failovers, statistics.replicas, statistics.paused_replicas) == (0, 2, 0)
        two_sidecars[0].kill()
        drafts = client.draft(steps)
        assert 0 < sum(map(bool, drafts)) < 24  # those of the other replica
        assert client.state == "ok"
        assert tokens(recovered(client, steps)) == before
        moved = client.statistics.failovers
        assert 0 < moved < 24
        assert client.statistics.paused_replicas == 1
        two_sidecars[0] = start_sidecar(graph_path, Path(two_sidecars[0].address.removeprefix("unix://")))
        give_up_s = time.monotonic() + GIVE_UP_S
        while client.statistics.paused_replicas and time.monotonic() < give_up_s:
            time.sleep(0.01)
        more = make_steps(small_graph, 24)
        assert all(client.draft([*steps, *more]))
        assert client.statistics.failovers == moved
        two_sidecars[1].kill()
        drafts = client.draft(more)
        assert 0 < sum(map(bool, drafts)) < 24  # some of the new sessions are at the first one again
        assert all(recovered(client, [*steps, *more]))


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
    run_sidecar: Callable[..., Sidecar], small_graph: NgramGraph, levels: list[str]
) -> None:
    steps = make_steps(small_graph, 8)
    sidecar = run_sidecar()
    with make_client(sidecar.address, small_graph.metadata.tokenizer) as client:
        before = tokens(client.draft(steps))
        for number in range(1, 3):
            sidecar.kill()
            for _ in range(20):
                assert not any(client.draft(steps))
                time.sleep(0.002)
            assert client.state == "unavailable"
            sidecar = run_sidecar()
            assert tokens(recovered(client, steps)) == before
            assert client.statistics.reopened_sessions == 8 * number
            assert levels == ["WARNING", "INFO"] * number


def test_the_asyncio_client_uses_a_killed_server_again(
    run_sidecar: Callable[..., Sidecar], small_graph: NgramGraph
) -> None:
    sidecar = run_sidecar()
    [step] = make_steps(small_graph)

    async def run() -> None:
        async with make_async_client(sidecar.address) as client:
            [before] = await client.draft([step])
            assert before
            sidecar.kill()
            for _ in range(20):
                assert not (await client.draft([step]))[0]
            await asyncio.to_thread(run_sidecar)
            for _ in range(1_000):
                [after] = await client.draft([step])
                if after:
                    break
                await asyncio.sleep(0.01)
            assert after.token_ids == before.token_ids

    asyncio.run(run())


def test_a_stopped_server_costs_a_few_deadlines_and_is_used_again(
    run_sidecar: Callable[..., Sidecar], small_graph: NgramGraph
) -> None:
    sidecar = run_sidecar()
    steps = make_steps(small_graph)
    with make_client(sidecar.address, deadline_ms=100.0) as client:
        before = tokens(recovered(client, steps))
        earlier = client.statistics
        sidecar.signal(signal.SIGSTOP)
        for _ in range(200):
            assert not client.draft(steps)[0]
            time.sleep(0.002)
        failed = client.statistics.failed_steps - earlier.failed_steps
        # Three steps wait in vain; the others are not even sent.
        assert failed - (client.statistics.skipped_steps - earlier.skipped_steps) == 3
        assert failed == 200
        sidecar.signal(signal.SIGCONT)
        assert tokens(recovered(client, steps)) == before
        assert client.statistics.reopened_sessions == 0
