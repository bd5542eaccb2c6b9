"""A sidecar in this process where something is missing or full."""

from __future__ import annotations

import asyncio
import http.client
from collections.abc import Awaitable, Callable
from pathlib import Path

import grpc.aio
import pytest
from loguru import logger

from speculant_drafter import graphs
from speculant_drafter.server import DrafterServer
from speculant_drafter.sessions import LIMITS, Limits
from speculant_graph.config import DraftConfig, ServerConfig
from speculant_graph.errors import DraftLimitError
from speculant_graph.rpc.status import error_of
from speculant_graph.rpc.v1 import drafter_pb2 as pb
from speculant_graph.rpc.v1.drafter_pb2_grpc import DrafterAdminServiceStub, DrafterServiceStub
from support.graphs import graph_of

Scenario = Callable[[DrafterServiceStub, DrafterAdminServiceStub], Awaitable[None]]


def play(folder: Path, scenario: Scenario, limits: Limits = LIMITS, **settings: object) -> None:
    for name in ("first", "second"):
        graph_of([[1, 2, 3, 1, 2, 4]], 2, 9).save(folder / f"{name}.pkl")
    config = ServerConfig.model_validate(
        {
            "listen": f"unix://{folder}/d.sock",
            "admin_listen": f"unix://{folder}/a.sock",
            "graph": folder / "first.pkl",
            "graphs": {"second": folder / "second.pkl"},
            **settings,
        }
    )

    async def run() -> None:
        async with (
            DrafterServer(config, DraftConfig(), limits=limits) as server,
            grpc.aio.insecure_channel(server.addresses[0]) as drafts,
            grpc.aio.insecure_channel(server.admin_addresses[0]) as looks_after,
        ):
            await scenario(DrafterServiceStub(drafts), DrafterAdminServiceStub(looks_after))

    asyncio.run(run())


def test_a_client_learns_how_long_a_full_sidecar_wants_to_be_left_alone(tmp_path: Path) -> None:
    async def scenario(stub: DrafterServiceStub, _: DrafterAdminServiceStub) -> None:
        await stub.OpenSession(pb.OpenSessionRequest(session_id=1))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.OpenSession(pb.OpenSessionRequest(session_id=2))
        error = error_of(caught.value)
        assert isinstance(error, DraftLimitError)
        assert 30.0 < error.retry_delay_s <= 60.0

    play(tmp_path, scenario, Limits(max_sessions=1, busy_s=60.0))


def test_whoever_is_not_let_in_is_in_the_log(tmp_path: Path) -> None:
    access_file = tmp_path / "access.toml"
    access_file.write_text(f'clients = [{{name = "one", token_sha256 = "{"0" * 64}"}}]', encoding="utf-8")
    access_file.chmod(0o600)
    lines: list[str] = []
    logger.enable("speculant_graph")
    logger.add(
        lines.append, level="DEBUG", format="{extra[request_id]} {message}", filter="speculant_graph.serving.calls"
    )

    async def scenario(stub: DrafterServiceStub, _: DrafterAdminServiceStub) -> None:
        mine = (("x-request-id", "mine"),)
        with pytest.raises(grpc.aio.AioRpcError, match="does not know this client") as caught:
            await stub.OpenSession(pb.OpenSessionRequest(session_id=1), metadata=mine)
        assert ("x-request-id", "mine") in tuple(caught.value.trailing_metadata())

    play(tmp_path, scenario, access_file=access_file)
    assert [line.split(": ")[:2] for line in lines] == [["mine OpenSession", "UNAUTHENTICATED"]]


def test_http_answers_while_graphs_are_being_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph_of([[1, 2, 3]], 2, 9).save(tmp_path / "first.pkl")
    config = ServerConfig(
        listen=f"unix://{tmp_path}/d.sock", graph=tmp_path / "first.pkl", metrics_listen="127.0.0.1:0"
    )
    server = DrafterServer(config, DraftConfig())

    def ask(path: str) -> tuple[int, str, str]:
        connection = http.client.HTTPConnection(server.metrics_address, timeout=60.0)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.headers["Content-Type"], response.read().decode()
        finally:
            connection.close()

    def read_graph(path: Path) -> object:
        told.extend(map(ask, ("/healthz", "/metrics", "/explorer/api/v1/graphs", "/", "/other")))
        return read(path)

    told: list[tuple[int, str, str]] = []
    read = graphs._read_graph
    monkeypatch.setattr(graphs, "_read_graph", read_graph)

    async def run() -> None:
        async with server:
            told.append(ask("/healthz"))  # the event loop of drafts stands still meanwhile

    asyncio.run(run())
    health, metrics, listed, index, other, ready = told
    assert health == (503, "text/plain; charset=utf-8", "graphs are being loaded\n")
    assert metrics[:2] == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert "speculant_drafter_steps_total 0.0\n" in metrics[2]
    assert (listed[0], "try again" in listed[2]) == (503, True)
    assert (index[0], other[0]) == (200, 404)
    assert (ready[0], ready[2]) == (200, "ok\n")
