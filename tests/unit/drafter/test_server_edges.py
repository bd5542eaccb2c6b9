"""A sidecar in this process while its graphs are still being loaded."""

from __future__ import annotations

import asyncio
import http.client
from pathlib import Path

import pytest

from speculant_drafter import graphs
from speculant_drafter.server import DrafterServer
from speculant_graph.config import DraftConfig, ServerConfig
from support.graphs import graph_of


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
            told.append(ask("/healthz"))  # this call blocks the event loop that drafts

    asyncio.run(run())
    health, metrics, listed, index, other, ready = told
    assert health == (503, "text/plain; charset=utf-8", "graphs are being loaded\n")
    assert metrics[:2] == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert "speculant_drafter_steps_total 0.0\n" in metrics[2]
    assert (listed[0], "try again" in listed[2]) == (503, True)
    assert (index[0], other[0]) == (200, 404)
    assert (ready[0], ready[2]) == (200, "ok\n")
