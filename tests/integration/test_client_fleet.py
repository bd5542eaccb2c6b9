"""Several sidecars as one drafter: sessions are spread, move when theirs is killed, and new ones come back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from speculant_graph.client import AsyncDrafterClient, DrafterClient, LocalDrafter, SidecarFleet, client_of
from speculant_graph.config import ClientConfig, DraftConfig
from speculant_graph.errors import ConfigError
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.types import SessionOptions
from support.clients import GIVE_UP_S, GREEDY, PATIENT, make_steps, recovered, tokens
from support.processes import Sidecar, start_sidecar

pytestmark = pytest.mark.faults


@pytest.fixture
def sidecars(graph_path: Path, tmp_path: Path) -> Iterator[list[Sidecar]]:
    started = [start_sidecar(graph_path, tmp_path / f"drafter-{index}.sock") for index in range(2)]
    yield started
    for sidecar in started:
        if sidecar.process.poll() is None:
            sidecar.kill()


def config(*addresses: str) -> ClientConfig:
    return ClientConfig.model_validate({"address": ", ".join(addresses), **PATIENT})


def test_sessions_move_to_the_sidecar_that_is_up_and_new_ones_come_back(
    sidecars: list[Sidecar], graph_path: Path, small_graph: NgramGraph
) -> None:
    addresses = [sidecar.address for sidecar in sidecars]
    steps, foreign = make_steps(small_graph, 24), make_steps(small_graph, 8)
    with client_of(config(*addresses), tokenizer=small_graph.metadata.tokenizer, draft=GREEDY) as client:
        assert isinstance(client, SidecarFleet)
        for step in steps:
            assert client.open(step.session_id) is None
        for step in foreign:
            assert "serves no graph 'other'" in str(client.open(step.session_id, SessionOptions(graph="other")))
        before = tokens(client.draft(steps))
        assert before == tokens(LocalDrafter(small_graph, GREEDY).draft(steps))
        sidecars[0].kill()
        drafts = client.draft(steps)
        assert 0 < sum(map(bool, drafts)) < 24  # those of the other one
        assert client.state == "ok"
        for _ in range(5):
            drafts = client.draft(steps)
        assert tokens(drafts) == before
        assert not any(client.draft(foreign))  # what a session was opened with moves, too
        assert not client.statistics.is_paused
        assert addresses[0] in client.statistics.last_failure

        sidecars[0] = start_sidecar(graph_path, Path(addresses[0].removeprefix("unix://")))
        give_up_s = time.monotonic() + GIVE_UP_S
        while client.clients[addresses[0]].is_paused and time.monotonic() < give_up_s:
            assert tokens(client.draft(steps)) == before
            time.sleep(0.01)
        more = make_steps(small_graph, 24)
        assert all(client.draft([*steps, *more]))
        sidecars[1].kill()
        drafts = client.draft(more)
        assert 0 < sum(map(bool, drafts)) < 24  # some of the new ones are at the first one again
        assert tokens(recovered(client, [*steps, *more])[:24]) == before
        sidecars[0].kill()
        while not client.statistics.is_paused and time.monotonic() < give_up_s:
            client.draft(steps)
        assert client.state == "unavailable"
        assert not any(client.draft([*steps, *more]))
        for step in (*steps, *foreign, *more):
            client.finish(step.session_id)


def test_tasks_use_several_sidecars_of_which_one_was_never_there(
    sidecars: list[Sidecar], small_graph: NgramGraph
) -> None:
    addresses = [*(sidecar.address for sidecar in sidecars), f"{sidecars[0].address}.nobody"]
    steps = make_steps(small_graph, 16)

    async def run() -> None:
        async with AsyncDrafterClient(config(*addresses), tokenizer=None, draft=GREEDY) as client:
            await asyncio.gather(*(client.open(step.session_id) for step in steps))
            for _ in range(4):
                drafts = await client.draft(steps)
            assert tokens(drafts) == tokens(LocalDrafter(small_graph, GREEDY).draft(steps))
            assert client.state == "ok"

    asyncio.run(run())


def test_the_number_of_addresses_decides() -> None:
    draft = DraftConfig()
    with client_of(config("a:1"), tokenizer=None, draft=draft) as one:
        assert isinstance(one, DrafterClient)
    with client_of(config("a:1", "b:2"), tokenizer=None, draft=draft) as several:
        assert isinstance(several, SidecarFleet)
        assert several.draft([]) == []
    for wrong in ("a:1,", "a:1,a:1"):
        with pytest.raises(ConfigError) as caught:
            client_of(config(wrong), tokenizer=None, draft=draft)
        assert caught.value.field == "address"
