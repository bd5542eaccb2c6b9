"""A fleet under load: a sidecar is killed and restarted, and clients reach sidecars through a load balancer."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest

from speculant_graph.bench.processes import free_port
from speculant_graph.client import DrafterClient
from speculant_graph.client.fleet import SidecarFleet, client_of
from speculant_graph.client.placement import placed_at
from speculant_graph.config import ClientConfig
from speculant_graph.draft.generator import DraftGenerator
from speculant_graph.engines.engine_sessions import EngineSessions
from speculant_graph.engines.rows import DrafterRows
from speculant_graph.graph.ngrams import NgramGraph
from support.clients import GIVE_UP_S, GREEDY, PATIENT, known_tokens, make_client, make_steps, recovered, tokens
from support.processes import start_sidecar

pytestmark = pytest.mark.faults

NUM_ENGINES = 3
NUM_ROWS = 6
MOST_NODES = 4
PASS_S = 0.002
FAILURES_BEFORE_MOVE = 3


class Engine:
    """Decodes rows of several tenants; its model writes the graph's most likely token, or else a fixed one."""

    def __init__(self, fleet: SidecarFleet, graph: NgramGraph, first_token: int) -> None:
        self.fleet, self._reference = fleet, DraftGenerator(graph)
        self.sessions = EngineSessions(DrafterRows(fleet), most_drafted=MOST_NODES, vocabulary_size=1 << 20)
        self.tenants = [f"tenant {index}" for index in range(NUM_ROWS)]
        self.first_token = first_token
        self.texts: list[list[int]] = []
        self.num_begun = self.num_steps = 0
        self.begin()

    def begin(self) -> None:
        """Replace all rows with new requests."""
        self.texts = [[self.first_token, self.num_begun + row] for row in range(NUM_ROWS)]
        self.num_begun += NUM_ROWS

    def step(self) -> int:
        """Run a step; return the number of rows that got no draft although the graph has one."""
        expected = tokens([self._reference.draft(text, MOST_NODES, "greedy") for text in self.texts])
        drafts = self.sessions.draft(self.texts, [MOST_NODES] * NUM_ROWS, tenants=self.tenants).lists()
        for draft, wanted in zip(drafts, expected, strict=True):
            assert tuple(draft) in (wanted, ()), "a draft is the graph's or none"
        missing = sum(bool(wanted) and not draft for draft, wanted in zip(drafts, expected, strict=True))
        for text, wanted in zip(self.texts, expected, strict=True):
            text.append(wanted[0] if wanted else self.first_token)
        self.num_steps += 1
        time.sleep(PASS_S)
        return missing


def wait_until(is_so: Callable[[], bool]) -> None:
    give_up_s = time.monotonic() + GIVE_UP_S
    while not is_so():
        assert time.monotonic() < give_up_s
        time.sleep(0.005)


def test_a_sidecar_is_killed_and_started_again_under_load(
    graph_path: Path, tmp_path: Path, small_graph: NgramGraph
) -> None:
    started = [start_sidecar(graph_path, tmp_path / f"drafter-{index}.sock") for index in range(2)]
    addresses = [sidecar.address for sidecar in started]
    known = known_tokens(small_graph)
    misses: list[list[int]] = [[] for _ in range(NUM_ENGINES)]
    problems: list[BaseException] = []
    is_over = threading.Event()
    config = ClientConfig.model_validate({"address": ",".join(addresses), **PATIENT})

    def run(engine: Engine, missing: list[int]) -> None:
        try:
            while not is_over.is_set():
                missing.append(engine.step())
                if engine.num_steps % 20 == 0:
                    engine.begin()
        except BaseException as error:
            problems.append(error)
            raise

    with ExitStack() as stack:
        engines = []
        for index in range(NUM_ENGINES):
            fleet = client_of(config, tokenizer=None, draft=GREEDY)
            assert isinstance(fleet, SidecarFleet)
            engine = Engine(fleet, small_graph, known[index])
            engines.append(engine)
            stack.enter_context(closing(engine.sessions))
        threads = [
            threading.Thread(target=run, args=(engine, missing))
            for engine, missing in zip(engines, misses, strict=True)
        ]
        for thread in threads:
            thread.start()
        try:

            def advance(num_steps: int) -> None:
                targets = [engine.num_steps + num_steps for engine in engines]
                wait_until(
                    lambda: (
                        bool(problems)
                        or all(each.num_steps >= target for each, target in zip(engines, targets, strict=True))
                    )
                )

            advance(30)
            assert not any(map(any, misses))
            began = [len(missing) for missing in misses]
            started[0].kill()
            advance(30)
            for missing, at in zip(misses, began, strict=True):
                assert sum(map(bool, missing[at:])) <= FAILURES_BEFORE_MOVE, "later steps draft elsewhere"
            at_first = [each.fleet.clients[addresses[0]].statistics.drafted_nodes for each in engines]
            assert {placed_at(tenant, addresses) for tenant in engines[0].tenants} == set(addresses)
            started[0] = start_sidecar(graph_path, tmp_path / "drafter-0.sock")
            wait_until(
                lambda: (
                    bool(problems)
                    or all(
                        engine.fleet.clients[addresses[0]].statistics.drafted_nodes > before
                        for engine, before in zip(engines, at_first, strict=True)
                    )
                )
            )
            began = [len(missing) for missing in misses]
            advance(10)
            assert not any(any(missing[at:]) for missing, at in zip(misses, began, strict=True))
        finally:
            is_over.set()
            for thread in threads:
                thread.join()
            for sidecar in started:
                sidecar.kill()
        assert not problems
        assert all(engine.sessions.counts.failed_steps == 0 for engine in engines)


class Balancer:
    """Forwards TCP connections to backends in turn, skipping any that do not answer; knows nothing about gRPC."""

    def __init__(self, backends: list[tuple[str, int]]) -> None:
        self._backends, self._num_connections = backends, 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._sockets = [self._listener]
        self._threads: list[threading.Thread] = []
        self._run(self._accept)

    def close(self) -> None:
        for each in self._sockets:
            _shut(each)
        for thread in self._threads:
            thread.join()
        for each in self._sockets:
            each.close()

    def _run(self, work: Callable[..., None], *arguments: socket.socket) -> None:
        self._threads.append(threading.Thread(target=work, args=arguments))
        self._threads[-1].start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                front, _ = self._listener.accept()
                self._sockets.append(front)
                if (back := self._connected()) is None:
                    _shut(front)
                    continue
                self._sockets.append(back)
                self._run(self._carry, front, back)
                self._run(self._carry, back, front)

    def _connected(self) -> socket.socket | None:
        for _ in self._backends:
            backend = self._backends[self._num_connections % len(self._backends)]
            self._num_connections += 1
            with suppress(OSError):
                return socket.create_connection(backend)
        return None

    @staticmethod
    def _carry(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
        for each in (source, target):
            _shut(each)


def _shut(each: socket.socket) -> None:
    with suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)


def test_a_balancer_of_connections_may_stand_before_sidecars(
    graph_path: Path, tmp_path: Path, small_graph: NgramGraph
) -> None:
    ports = [free_port() for _ in range(2)]
    started = [start_sidecar(graph_path, tmp_path / f"{port}.sock", listen=f"127.0.0.1:{port}") for port in ports]
    with closing(Balancer([("127.0.0.1", port) for port in ports])) as balancer, ExitStack() as stack:
        for sidecar in started:
            stack.callback(sidecar.kill)
        clients: list[DrafterClient] = [stack.enter_context(make_client(balancer.address)) for _ in range(2)]
        steps = [make_steps(small_graph, 8) for _ in clients]
        before = [tokens(client.draft(each)) for client, each in zip(clients, steps, strict=True)]
        for _ in range(20):
            again = [tokens(client.draft(each)) for client, each in zip(clients, steps, strict=True)]
            assert again == before
        assert [client.statistics.reopened_sessions for client in clients] == [0, 0], "a client has one connection"
        started[0].kill()
        assert [tokens(recovered(client, each)) for client, each in zip(clients, steps, strict=True)] == before
