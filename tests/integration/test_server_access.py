"""Access to the sidecar: tokens and certificates on real connections, and separation of sessions and graphs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest

from speculant_graph.rpc.v1 import drafter_pb2 as pb
from support.access import Certificates, access_file, entry
from support.server import (
    LOST,
    OK,
    Clock,
    LiveServer,
    Wire,
    code_of,
    connected,
    graph_file,
    refusal,
    serving,
    step_of,
)

DENIED, UNKNOWN_CLIENT = grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED
NOT_FOUND, UNAVAILABLE = grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNAVAILABLE


CLIENTS = (
    entry("search", "one", 'graphs = ["two"]'),
    entry("chat", "two", 'tenants = ["chat", "chat-test"]'),
    entry("operator", "three", 'admin = true\ntenants = "*"'),
)


class Clients:
    """A server with an access file, and a channel for each client."""

    def __init__(self, server: LiveServer, stack: ExitStack, clock: Clock) -> None:
        self.server = server
        self.clock = clock
        self._stack = stack
        self.search, self.chat = self.wire("one"), self.wire("two")

    def wire(self, token: str | None, *, admin: bool = False) -> Wire:
        """Return the stubs of the client with a token."""
        address = self.server.server.admin_addresses[0] if admin else self.server.address
        return self._stack.enter_context(connected(address, token=token))


@pytest.fixture
def clients(tmp_path: Path) -> Iterator[Clients]:
    graph_file(tmp_path / "two.pkl", [1, 2, 2] * 8)
    graph_file(tmp_path / "three.pkl", [1, 3, 3] * 8)
    access = access_file(tmp_path / "access.toml", *CLIENTS)
    settings = {"file": access, "graphs": {"three": tmp_path / "three.pkl"}}
    clock = Clock()
    with serving(tmp_path / "two.pkl", tmp_path, clock=clock, **settings) as server, ExitStack() as stack:
        yield Clients(server, stack, clock)


@pytest.mark.parametrize("token", [None, "wrong", "ONE", "one2"])
def test_who_is_not_known_may_do_nothing_but_ask_for_health(clients: Clients, token: str | None) -> None:
    stranger = clients.wire(token)
    for call, request in (
        (stranger.drafter.Draft, step_of(0, [1])),
        (stranger.drafter.OpenSession, pb.OpenSessionRequest(session_id=1)),
        (stranger.drafter.CloseSession, pb.CloseSessionRequest(session_id=1)),
        (lambda each: list(stranger.drafter.StreamDraft(each)), iter([pb.StreamDraftRequest()])),
        (clients.wire(token, admin=True).admin.ListGraphs, pb.ListGraphsRequest()),
    ):
        assert code_of(call, request) is UNKNOWN_CLIENT
    assert stranger.health() == 1


def test_a_tenant_is_the_clients_own_or_refused(clients: Clients) -> None:
    search, chat = clients.search, clients.chat
    search.open(1)
    search.open(2, tenant="search")
    for wire, tenant in ((search, "chat"), (chat, "search"), (chat, ""), (chat, "nobody")):
        request = pb.OpenSessionRequest(session_id=3, tenant=tenant)
        assert code_of(wire.drafter.OpenSession, request) is DENIED
        assert code_of(wire.drafter.CloseSession, pb.CloseSessionRequest(session_id=1, tenant=tenant)) is DENIED
    chat.open(3, tenant="chat-test")
    clients.wire("three").open(4, tenant="whoever")


def test_the_session_of_another_is_as_unknown_as_none(clients: Clients) -> None:
    search, chat = clients.search, clients.chat
    session_id = search.open()
    search.drafter.Draft(step_of(session_id, [1]))
    answer = chat.drafter.Draft(step_of(session_id, [1], 1))
    nobodys = chat.drafter.Draft(step_of(999_999, [1], 1))
    assert list(answer.sequence_statuses) == list(nobodys.sequence_statuses) == [LOST]
    assert list(answer.next_positions) == list(nobodys.next_positions) == [0]
    chat.close(session_id, "chat")
    # The owner's contradictory step would end the session; another tenant's step does not.
    chat.drafter.Draft(step_of(session_id, [9], 0))
    answer = search.drafter.Draft(step_of(session_id, [2], 1))
    assert (list(answer.sequence_statuses), list(answer.next_positions)) == ([OK], [2])


def test_a_graph_that_is_not_the_clients_is_as_unknown_as_none(clients: Clients) -> None:
    details = set()
    for call, request in (
        (clients.search.drafter.Draft, step_of(0, [1], graph="three")),
        (clients.search.drafter.OpenSession, pb.OpenSessionRequest(session_id=1, graph="three")),
    ):
        error = refusal(call, request)
        assert error.code() is NOT_FOUND
        assert "three" not in error.details()
        details.add(error.details())
    assert len(details) == 1


def test_only_administrators_look_after_graphs(clients: Clients) -> None:
    requests = {"ListGraphs": pb.ListGraphsRequest(), "ReloadGraph": pb.ReloadGraphRequest(name="two")}
    for token, is_admin in (("one", False), ("two", False), ("three", True)):
        admin = clients.wire(token, admin=True).admin
        for method, request in requests.items():
            if is_admin:
                getattr(admin, method)(request)
            else:
                assert code_of(getattr(admin, method), request) is DENIED


def test_certificates_of_clients(graph_path: Path, tmp_path: Path) -> None:
    ours, theirs = Certificates(tmp_path / "ours"), Certificates(tmp_path / "theirs")
    clients = (entry("search", certificate="search.internal"), entry("chat", "two"))
    access = access_file(tmp_path / "access.toml", *clients)
    settings = {"listen": "127.0.0.1:0", "tls_client_ca": ours.ca, "file": access, **ours.server}
    right = {"tls_ca": ours.ca, **ours.client}
    with serving(graph_path, tmp_path, client=right, **settings) as server:
        server.open(1, tenant="search")
        assert code_of(server.drafter.OpenSession, pb.OpenSessionRequest(session_id=2, tenant="chat")) is DENIED
        with connected(server.address, **right, token="two") as wire:
            wire.open(2, tenant="chat")  # the token takes precedence
        with connected(server.address, **right, token="wrong") as wire:
            assert code_of(wire.drafter.Draft, step_of(0, [1])) is UNKNOWN_CLIENT
        for client in ({"tls_ca": ours.ca}, {"tls_ca": ours.ca, **theirs.client}):
            with connected(server.address, **client) as wire:
                assert code_of(wire.drafter.Draft, step_of(0, [1])) is UNAVAILABLE
