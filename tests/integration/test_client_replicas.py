"""What a client knows of its replicas, and what a name that stands for several addresses is to it."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack

import pytest

from speculant_graph.client import DrafterClient
from speculant_graph.config import ClientConfig, DraftConfig
from speculant_graph.types import SequenceStep
from support.server import PATIENCE_S, serving


def client_of(address):
    config = ClientConfig(address=address, deadline_ms=5_000.0, open_deadline_ms=5_000.0, failures_before_pause=1)
    return DrafterClient(config, draft=DraftConfig(), wants_proposals=False, tokenizer=None)


def draft(client, sessions, length=4):
    client.draft([SequenceStep(session, tuple(range(length)), 4) for session in sessions])


def test_a_replica_that_is_away_is_counted_as_paused(graph_path, tmp_path):
    with ExitStack() as stack:
        for name in ("a", "b"):
            (tmp_path / name).mkdir(mode=0o700)
        first, second = (stack.enter_context(serving(graph_path, tmp_path / name)) for name in ("a", "b"))
        client = client_of(f"{first.address},{second.address}")
        stack.callback(client.close)
        draft(client, range(1, 17))
        assert (client.statistics.replicas, client.statistics.paused_replicas) == (2, 0)
        second.stop()
        give_up_s = time.monotonic() + PATIENCE_S
        while client.statistics.paused_replicas != 1:
            assert time.monotonic() < give_up_s
            draft(client, range(1, 17))
        assert client.statistics.replicas == 2


def ports_at_both_loopbacks():
    """Return a port that is free at both addresses of 'localhost'; None if it has but one."""
    names = {each[4][0] for each in socket.getaddrinfo("localhost", 1, type=socket.SOCK_STREAM)}
    if not {"127.0.0.1", "::1"} <= names:
        return None
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


def test_a_name_of_several_addresses_is_one_replica(graph_path, tmp_path):
    """So a name without an address of its own, as in Kubernetes, must not be used: name every replica."""
    port = ports_at_both_loopbacks()
    if port is None:
        pytest.skip("'localhost' is one address here")
    with ExitStack() as stack:
        servers = []
        for name, host in (("a", "127.0.0.1"), ("b", "[::1]")):
            (tmp_path / name).mkdir(mode=0o700)
            folder = tmp_path / name
            servers.append(stack.enter_context(serving(graph_path, folder, listen=f"{host}:{port}")))
        client = client_of(f"localhost:{port}")
        stack.callback(client.close)
        draft(client, range(1, 33))
        assert client.statistics.replicas == 1
        assert sorted(server.metrics()["opened_sessions_total"] for server in servers) == [0, 32]
