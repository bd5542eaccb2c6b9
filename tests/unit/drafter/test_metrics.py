"""Counters, their text, and the HTTP server that shows it."""

from __future__ import annotations

import asyncio
import http.client
import socket
import time
from collections.abc import Callable
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from speculant_drafter.counts import STEP_BOUNDS_S, GraphState, ServerCounts, ServerState, SessionEnd
from speculant_drafter.metrics import render_metrics
from speculant_drafter.metrics_endpoint import MetricsEndpoint
from speculant_graph.errors import ConfigError
from speculant_graph.version import VERSION

PATIENCE_S = 10.0
STATE = ServerState([GraphState("docs", 3, 17), GraphState('a "b"\\\n', 1, 0)], session_bytes=1_234, learned_tokens=99)


def samples(text: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


@given(st.lists(st.tuples(st.floats(0.0, 0.1) | st.sampled_from(STEP_BOUNDS_S), st.integers(1, 8)), max_size=30))
def test_the_histogram_counts_what_is_at_most_a_bound(steps: list[tuple[float, int]]) -> None:
    counts = ServerCounts()
    for seconds, num_sequences in steps:
        counts.observe_step(seconds, num_sequences)
    found = samples(render_metrics(counts, ServerState()))
    for bound in STEP_BOUNDS_S:
        expected = sum(seconds <= bound for seconds, _ in steps)
        assert found["speculant_drafter_step_seconds_bucket", (("le", str(bound)),)] == expected
    assert found["speculant_drafter_step_seconds_bucket", (("le", "+Inf"),)] == len(steps)
    assert found["speculant_drafter_step_seconds_count", ()] == found["speculant_drafter_steps_total", ()] == len(steps)
    assert found["speculant_drafter_step_seconds_sum", ()] == pytest.approx(sum(seconds for seconds, _ in steps))
    assert found["speculant_drafter_sequences_total", ()] == sum(number for _, number in steps)


def test_every_counter_and_gauge_is_shown() -> None:
    counts = ServerCounts()
    counts.drafted_nodes, counts.empty_drafts, counts.opened_sessions = 5, 6, 7
    for code in ("INTERNAL", "INVALID_ARGUMENT", "INTERNAL"):
        counts.fail_step(code)
    for reason in (*get_args(SessionEnd), "idle"):
        counts.end_session(reason)
    found = samples(render_metrics(counts, STATE))
    prefix = "speculant_drafter_"
    assert found[prefix + "build_info", (("version", VERSION),)] == 1
    assert found[prefix + "drafted_nodes_total", ()] == 5
    assert found[prefix + "empty_drafts_total", ()] == 6
    assert found[prefix + "opened_sessions_total", ()] == 7
    assert found[prefix + "failed_steps_total", (("code", "INTERNAL"),)] == 2
    assert found[prefix + "failed_steps_total", (("code", "INVALID_ARGUMENT"),)] == 1
    for reason in get_args(SessionEnd):
        assert found[prefix + "ended_sessions_total", (("reason", reason),)] == (2 if reason == "idle" else 1)
    assert found[prefix + "session_bytes", ()] == 1_234
    assert found[prefix + "learned_tokens", ()] == 99
    for graph in STATE.graphs:
        assert found[prefix + "open_sessions", (("graph", graph.name),)] == graph.open_sessions
        assert found[prefix + "graph_generation", (("graph", graph.name),)] == graph.generation
    assert found["process_resident_memory_bytes", ()] > 1_000_000


def test_every_metric_has_a_help_text_and_no_label_is_a_clients() -> None:
    counts = ServerCounts()
    counts.fail_step("INTERNAL")
    for family in text_string_to_metric_families(render_metrics(counts, STATE).decode()):
        assert family.documentation
        for sample in family.samples:
            assert sample.labels.keys() <= {"code", "reason", "graph", "le", "version"}


def test_a_copy_does_not_follow() -> None:
    counts = ServerCounts()
    counts.fail_step("INTERNAL")
    copied = counts.copy()
    counts.observe_step(0.001, 2)
    counts.fail_step("INTERNAL")
    counts.end_session("idle")
    assert (copied.steps, sum(copied.step_buckets), copied.failed_steps, copied.ended_sessions["idle"]) == (
        0,
        0,
        {"INTERNAL": 1},
        0,
    )


def serve(
    talk: Callable[[int], None], counts: ServerCounts | None = None, problem: str = "", **settings: float
) -> None:
    """Run an endpoint and, in a thread, what talks to its port."""

    async def run() -> None:
        endpoint = MetricsEndpoint(counts or ServerCounts(), lambda: STATE, lambda: problem, **settings)
        address = await endpoint.start("127.0.0.1:0")
        host, _, port = address.rpartition(":")
        assert host == "127.0.0.1"
        try:
            await asyncio.to_thread(talk, int(port))
        finally:
            await asyncio.wait_for(endpoint.close(), PATIENCE_S)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", int(port)), PATIENCE_S)

    asyncio.run(run())


def ask(port: int, path: str, method: str = "GET") -> tuple[int, bytes, http.client.HTTPMessage]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.read(), response.headers
    finally:
        connection.close()


def say(port: int, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as connection:
        connection.sendall(request)
        return b"".join(iter(lambda: connection.recv(65_536), b""))


def test_the_pages() -> None:
    counts = ServerCounts()
    counts.observe_step(0.001, 4)

    def talk(port: int) -> None:
        status, body, headers = ask(port, "/metrics?x=1")
        assert (status, headers["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
        assert samples(body)["speculant_drafter_sequences_total", ()] == 4
        assert ask(port, "/healthz")[:2] == (200, b"ok\n")
        assert b"/metrics" in ask(port, "/")[1]
        assert b"/healthz" in ask(port, "/")[1]
        assert ask(port, "/other")[0] == ask(port, "/metrics/x")[0] == 404
        status, body, headers = ask(port, "/metrics", "POST")
        assert (status, headers["Allow"]) == (405, "GET, HEAD")
        for path in ("/metrics", "/healthz", "/", "/other"):
            status, body, headers = ask(port, path, "HEAD")
            assert (status, body) == (404 if path == "/other" else 200, b"")
            assert int(headers["Content-Length"]) > 0
        for path in ("/healthz", "/"):
            assert ask(port, path, "HEAD")[2]["Content-Length"] == str(len(ask(port, path)[1]))

    serve(talk, counts)


def test_healthz_says_what_is_wrong() -> None:
    def talk(port: int) -> None:
        assert ask(port, "/healthz")[:2] == (503, b"loading\n")

    serve(talk, problem="loading")


@pytest.mark.parametrize(
    "request_bytes", [b"\r\n\r\n", b"hello\r\n\r\n", b"GET /\r\n\r\n", b"\xff\x00 / x\r\n\r\n", b"GET / HTTP/2\r\n\r\n"]
)
def test_what_is_no_request_is_refused(request_bytes: bytes) -> None:
    def talk(port: int) -> None:
        assert say(port, request_bytes).startswith(b"HTTP/1.1 400 ")

    serve(talk)


def test_endless_headers_and_half_requests_end_nothing_else() -> None:
    def talk(port: int) -> None:
        with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as connection:
            try:
                while connection.send(b"x" * 65_536):
                    pass
            except OSError:  # it hangs up
                pass
        with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as connection:
            connection.sendall(b"GET /heal")
        assert ask(port, "/healthz")[0] == 200

    serve(talk)


def test_a_connection_that_drips_is_dropped() -> None:
    def talk(port: int) -> None:
        with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as connection:
            give_up_s = time.monotonic() + PATIENCE_S
            is_connected = True
            while is_connected and time.monotonic() < give_up_s:
                try:
                    connection.sendall(b"G")
                    time.sleep(0.02)
                except OSError:
                    is_connected = False
            assert not is_connected

    serve(talk, timeout_s=0.1)


def test_connections_that_come_at_once_give_way_as_well() -> None:
    async def scenario() -> None:
        endpoint = MetricsEndpoint(ServerCounts(), ServerState, str, timeout_s=PATIENCE_S * 10)
        address = await endpoint.start("127.0.0.1:0")
        # The loop stands still meanwhile, and finds all of them at its next turn.
        idle = [socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2]))) for _ in range(40)]
        try:
            for connection in idle[:8]:
                connection.setblocking(False)
                assert await asyncio.wait_for(closed(connection), PATIENCE_S)
            await endpoint.close()
            for connection in idle[8:]:
                connection.setblocking(False)
                assert await asyncio.wait_for(closed(connection), PATIENCE_S)
        finally:
            for connection in idle:
                connection.close()

    async def closed(connection: socket.socket) -> bool:
        try:
            return await asyncio.get_running_loop().sock_recv(connection, 1) == b""
        except ConnectionResetError:
            return True

    asyncio.run(scenario())


def test_many_idle_connections_keep_nobody_out_and_do_not_hold_up_the_end() -> None:
    def talk(port: int) -> None:
        idle = [socket.create_connection(("127.0.0.1", port), PATIENCE_S) for _ in range(60)]
        try:
            assert ask(port, "/healthz")[0] == 200
            assert idle[0].recv(1) == b""  # the oldest gave way
            idle[-1].setblocking(False)
            with pytest.raises(BlockingIOError):
                idle[-1].recv(1)
        finally:
            left.extend(idle)

    left: list[socket.socket] = []
    try:
        serve(talk, timeout_s=PATIENCE_S * 10)
    finally:
        for connection in left:
            connection.close()


@pytest.mark.parametrize("address", ["unix:///tmp/metrics.sock", "9090", "nowhere.invalid:1", "192.0.2.1:9090"])
def test_addresses_that_cannot_be_listened_on(address: str) -> None:
    endpoint = MetricsEndpoint(ServerCounts(), ServerState, str)
    with pytest.raises(ConfigError):
        asyncio.run(endpoint.start(address))


def test_a_taken_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        said = rf"can't listen on {address}: another program .* --server\.metrics-listen"
        with pytest.raises(ConfigError, match=said):
            asyncio.run(MetricsEndpoint(ServerCounts(), ServerState, str).start(address))


def test_an_endpoint_that_never_started_closes() -> None:
    asyncio.run(MetricsEndpoint(ServerCounts(), ServerState, str).close())
