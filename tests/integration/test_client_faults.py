"""Sidecars that are killed, stopped and restarted, alone or with a common DNS name."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from loguru import logger

from speculant_graph.graph.ngrams import NgramGraph
from support.clients import make_client, make_steps, recovered, tokens
from support.processes import Sidecar, start_sidecar

pytestmark = pytest.mark.faults


@pytest.fixture
def levels() -> Iterator[list[str]]:
    """The levels of logged messages."""
    found: list[str] = []
    logger.enable("speculant_graph")
    sink = logger.add(lambda message: found.append(message.record["level"].name), level="INFO")
    yield found
    logger.remove(sink)
    logger.disable("speculant_graph")


def test_another_sidecar_of_the_same_name_takes_over(graph_path: Path, tmp_path: Path, small_graph: NgramGraph) -> None:
    """``localhost`` resolves to two addresses of this machine."""
    with socket.socket(socket.AF_INET6) as free:
        free.bind(("::1", 0))
        port = free.getsockname()[1]
    running = [
        start_sidecar(graph_path, tmp_path / f"{index}.log", listen=f"{host}:{port}")
        for index, host in enumerate(("127.0.0.1", "[::1]"))
    ]
    steps = make_steps(small_graph, 8)
    with make_client(f"localhost:{port}") as client:
        before = tokens(recovered(client, steps))
        running[0].kill()
        recovered(client, steps)
        running.append(start_sidecar(graph_path, tmp_path / "again.log", listen=f"127.0.0.1:{port}"))
        running[1].kill()
        assert tokens(recovered(client, steps)) == before
        assert client.statistics.reopened_sessions >= 8
    running[2].kill()


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
        # Three steps time out; the others are not sent.
        assert failed - (client.statistics.skipped_steps - earlier.skipped_steps) == 3
        assert failed == 200
        sidecar.signal(signal.SIGCONT)
        assert tokens(recovered(client, steps)) == before
        assert client.statistics.reopened_sessions == 0
