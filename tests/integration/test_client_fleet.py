"""Several sidecars as one drafter: a tenant uses its own sidecar, and another one while that is down."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from speculant_graph.bench.processes import free_port
from speculant_graph.client import AsyncDrafterClient, DrafterClient, LocalDrafter, SidecarFleet, client_of
from speculant_graph.client.placement import placed_at
from speculant_graph.config import ClientConfig, DraftConfig
from speculant_graph.errors import ConfigError
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.types import SequenceStep, SessionOptions
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


def config(*addresses: str, **settings: Any) -> ClientConfig:
    return ClientConfig.model_validate({"address": ", ".join(addresses), **PATIENT, **settings})


def fleet_of(*addresses: str, draft: DraftConfig = GREEDY, **settings: Any) -> SidecarFleet:
    client = client_of(config(*addresses, **settings), tokenizer=None, draft=draft)
    assert isinstance(client, SidecarFleet)
    return client


def open_for_tenants(client: SidecarFleet, steps: list[SequenceStep]) -> list[str]:
    """Open each step's session for a different tenant; return the tenants."""
    tenants = [f"tenant {index}" for index in range(len(steps))]
    for step, tenant in zip(steps, tenants, strict=True):
        assert client.open(step.session_id, SessionOptions(tenant=tenant)) is None
    return tenants


def back(client: SidecarFleet, address: str, steps: list[SequenceStep]) -> None:
    """Run steps until a sidecar is no longer paused."""
    give_up_s = time.monotonic() + GIVE_UP_S
    while client.clients[address].is_paused and time.monotonic() < give_up_s:
        client.draft(steps)
        time.sleep(0.01)
    assert not client.clients[address].is_paused


def test_tenants_move_when_their_sidecar_is_killed_and_new_sessions_come_back(
    sidecars: list[Sidecar], graph_path: Path, small_graph: NgramGraph
) -> None:
    addresses = [sidecar.address for sidecar in sidecars]
    steps, foreign = make_steps(small_graph, 24), make_steps(small_graph, 8)
    with fleet_of(*addresses) as client:
        tenants = open_for_tenants(client, steps)
        at_first = [placed_at(tenant, addresses) == addresses[0] for tenant in tenants]
        for step, tenant in zip(foreign, tenants, strict=False):
            options = SessionOptions(tenant=tenant, graph="other")
            assert "serves no graph 'other'" in str(client.open(step.session_id, options))
        before = tokens(client.draft(steps))
        assert before == tokens(LocalDrafter(small_graph, GREEDY).draft(steps))
        sidecars[0].kill()
        assert [not draft for draft in client.draft(steps)] == at_first
        assert client.state == "ok"
        for _ in range(5):
            drafts = client.draft(steps)
        assert tokens(drafts) == before
        assert not any(client.draft(foreign))  # a session's options move with it
        assert client.statistics.num_paused == 1
        assert addresses[0] in client.statistics.last_failure

        sidecars[0] = start_sidecar(graph_path, Path(addresses[0].removeprefix("unix://")))
        back(client, addresses[0], steps)
        more = make_steps(small_graph, 24)
        open_for_tenants(client, more)
        assert all(client.draft([*steps, *more]))
        sidecars[1].kill()
        assert [bool(draft) for draft in client.draft(more)] == at_first
        assert tokens(recovered(client, [*steps, *more])[:24]) == before
        sidecars[0].kill()
        give_up_s = time.monotonic() + GIVE_UP_S
        while client.statistics.num_paused < 2 and time.monotonic() < give_up_s:
            client.draft(steps)
        assert client.state == "unavailable"
        assert not any(client.draft([*steps, *more]))
        for step in (*steps, *foreign, *more):
            client.finish(step.session_id)


def test_a_client_without_tenant_keeps_to_one_sidecar_and_clients_are_spread(
    sidecars: list[Sidecar], small_graph: NgramGraph
) -> None:
    addresses = [sidecar.address for sidecar in sidecars]
    used = set()
    for _ in range(20):
        with fleet_of(*addresses) as client:
            assert all(client.draft(make_steps(small_graph, 8)))
            asked = {address for address, each in client.clients.items() if each.statistics.steps}
            assert len(asked) == 1
            used |= asked
    assert used == set(addresses)
    named = [fleet_of(*order, tenant="acme") for order in (addresses, addresses[::-1])]
    for client in named:
        with client:
            assert all(client.draft(make_steps(small_graph, 8)))
            assert client.clients[placed_at("acme", addresses)].statistics.steps == client.statistics.steps


def test_a_tenants_text_waits_for_it_where_it_was_learned(graph_path: Path, tmp_path: Path) -> None:
    tree = DraftConfig(strategy="tree")
    sockets = [tmp_path / f"drafter-{index}.sock" for index in range(2)]

    def start(path: Path) -> Sidecar:
        return start_sidecar(graph_path, path, learned=path.with_suffix(".learned"))

    started = {f"unix://{path}": start(path) for path in sockets}
    first = placed_at("acme", started)
    sessions = iter(range(1, 100))

    def follows(client: SidecarFleet, context: list[int]) -> list[int]:
        session_id = next(sessions)
        client.open(session_id)
        [draft] = client.draft([SequenceStep(session_id, context, 1)])
        client.finish(session_id)
        return list(draft.token_ids)

    def teach(client: SidecarFleet, text: list[int]) -> None:
        session_id = next(sessions)
        for end in (1, len(text)):
            [_] = client.draft([SequenceStep(session_id, text[:end], 1)])
        client.finish(session_id)

    early, late = [3, 9, 14, 22, 31], [4, 8, 15, 23, 30]
    try:
        with fleet_of(*started, draft=tree, tenant="acme") as client:
            teach(client, early * 3)
            assert follows(client, early[1:4]) == early[4:]
            assert started[first].stop() == 0
            for _ in range(4):
                follows(client, early[:1])
            assert follows(client, early[1:4]) != early[4:], "the other one has not seen it"
            teach(client, late * 3)
            assert follows(client, late[1:4]) == late[4:]
            started[first] = start(Path(first.removeprefix("unix://")))
            back(client, first, [SequenceStep(next(sessions), [1], 1)])
            assert follows(client, early[1:4]) == early[4:]
    finally:
        for sidecar in started.values():
            if sidecar.process.poll() is None:
                sidecar.kill()


def test_what_comes_and_goes_under_a_name(
    graph_path: Path, tmp_path: Path, small_graph: NgramGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = ["127.0.0.1", "127.0.0.2"]
    real, port = socket.getaddrinfo, free_port()

    def resolve(host: Any, *arguments: Any, **options: Any) -> Any:
        if host != "fleet.test":
            return real(host, *arguments, **options)
        if not known:
            raise socket.gaierror
        return [(socket.AF_INET, 0, 0, "", (each, port)) for each in known]

    def name_of(address: tuple[str, int], flags: int) -> tuple[str, str]:
        return f"pod-{address[0][-1]}.fleet.test", str(address[1])

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(socket, "getnameinfo", name_of)
    started = [
        start_sidecar(graph_path, tmp_path / f"{index}.sock", listen=f"127.0.0.{index}:{port}") for index in (1, 2)
    ]
    try:
        with fleet_of(f"dns:///fleet.test:{port}") as client:
            addresses = [sidecar.address for sidecar in started]
            assert sorted(client.clients) == addresses
            client.lookup()
            steps = make_steps(small_graph, 24)
            tenants = open_for_tenants(client, steps)
            before = tokens(client.draft(steps))
            assert all(before)
            names = {f"pod-{index}.fleet.test:{port}": address for index, address in enumerate(addresses, start=1)}
            at_first = [
                step for step, each in zip(steps, tenants, strict=True) if names[placed_at(each, names)] == addresses[0]
            ]
            asked = client.clients[addresses[0]].statistics.drafted_nodes
            assert asked == sum(len(draft) for draft in client.draft(at_first)), "tenants are placed by lasting names"
            gone = known.pop()
            client.lookup()
            assert list(client.clients) == addresses[:1]
            assert tokens(client.draft(steps)) == before, "sessions stay as long as it answers"
            counted = client.statistics
            started[1].kill()
            assert tokens(recovered(client, steps)) == before
            client.lookup()
            assert client.statistics.steps >= counted.steps
            known.clear()
            client.lookup()
            assert list(client.clients) == addresses[:1], "a name that is not known keeps what it had"
            assert tokens(client.draft(steps)) == before
            known.extend(["127.0.0.1", gone])
            client.lookup()
            assert sorted(client.clients) == addresses
    finally:
        for sidecar in started:
            if sidecar.process.poll() is None:
                sidecar.kill()


def test_tasks_use_several_sidecars_of_which_one_was_never_there(
    sidecars: list[Sidecar], small_graph: NgramGraph
) -> None:
    addresses = [*(sidecar.address for sidecar in sidecars), f"{sidecars[0].address}.nobody"]
    steps = make_steps(small_graph, 16)

    async def run() -> None:
        async with AsyncDrafterClient(config(*addresses), tokenizer=None, draft=GREEDY) as client:
            options = [SessionOptions(tenant=f"tenant {index}") for index in range(len(steps))]
            opened = (client.open(step.session_id, each) for step, each in zip(steps, options, strict=True))
            await asyncio.gather(*opened)
            for _ in range(4):
                drafts = await client.draft(steps)
            assert tokens(drafts) == tokens(LocalDrafter(small_graph, GREEDY).draft(steps))
            assert client.state == "ok"

    asyncio.run(run())


def test_the_number_of_addresses_decides() -> None:
    draft = DraftConfig()
    with client_of(config("a:1"), tokenizer=None, draft=draft) as one:
        assert isinstance(one, DrafterClient)
    for several in ("a:1,b:2", "dns:///localhost:1"):
        with fleet_of(several) as client:
            assert client.draft([]) == []
    for wrong in ("a:1,", "a:1,a:1"):
        with pytest.raises(ConfigError) as caught:
            client_of(config(wrong), tokenizer=None, draft=draft)
        assert caught.value.field == "address"
