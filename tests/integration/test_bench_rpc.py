"""``speculant bench rpc`` on a small graph: what it prints, and that all four trials are measured."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from speculant_graph.bench.rpc import BenchRpcSettings
from speculant_graph.cli.main import main
from speculant_graph.settings import load_settings

KEYS = {
    "batch", "client_cpu_us_per_rpc", "client_p50_us", "client_p99_us", "client_echo_ratio", "client_rpc_per_s",
    "cpu_us_per_rpc", "echo_cpu_us_per_rpc", "echo_p50_us", "echo_p99_us", "echo_ratio", "p50_us", "p99_us",
    "reply_bytes", "request_bytes", "rpc_per_s", "socket_p50_us", "transport",
}  # fmt: skip


@pytest.mark.slow
def test_figures_of_every_batch_and_transport(graph_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cores = os.sched_getaffinity(0)
    options = ["--batch", "1,3", "--transport", "uds,tcp", "--steps", "100", "--draft.k", "4", "--json"]
    assert main(["bench", "rpc", "--graph", str(graph_path), *options]) == 0
    assert os.sched_getaffinity(0) == cores
    table, _, last = capsys.readouterr().out.strip().rpartition("\n")
    assert "batch of 3" in table
    figures = json.loads(last)
    results = figures["results"]
    assert [(each["transport"], each["batch"]) for each in results] == [
        (transport, batch) for transport in ("uds", "tcp") for batch in (1, 3)
    ]
    assert figures["k"] == 4
    for each in results:
        assert each.keys() >= KEYS
        assert 0 < each["socket_p50_us"] < each["p50_us"]
        assert each["echo_ratio"] == pytest.approx(each["p50_us"] / each["echo_p50_us"], rel=0.01)
        assert each["reply_bytes"] > 80


def test_one_setting_leaves_the_other_defaults() -> None:
    draft = load_settings(BenchRpcSettings, "bench rpc", ["--strategy", "tree"]).draft
    assert (draft.strategy, draft.k, draft.max_candidates) == ("tree", 10, 8)
