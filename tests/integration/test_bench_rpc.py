"""``speculant bench rpc`` on a small graph: its output, and that it measures all trials."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from speculant_graph.cli.main import main

KEYS = {
    "batch", "client_p50_us", "client_p99_us", "client_echo_ratio", "cpu_us_per_rpc", "echo_cpu_us_per_rpc",
    "echo_p50_us", "echo_p99_us", "echo_ratio", "p50_us", "p99_us", "reply_bytes", "request_bytes", "rpc_per_s",
}  # fmt: skip


@pytest.mark.slow
def test_figures_of_every_batch(graph_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cores = os.sched_getaffinity(0)
    options = ["--batch", "1,3", "--steps", "100", "--draft.k", "4", "--json"]
    assert main(["bench", "rpc", "--graph", str(graph_path), *options]) == 0
    assert os.sched_getaffinity(0) == cores
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (figures["k"], figures["strategy"], figures["max_candidates"]) == (4, "sampling", 8), "k leaves the others"
    assert [each["batch"] for each in figures["results"]] == [1, 3]
    for each in figures["results"]:
        assert each.keys() >= KEYS
        assert each["echo_ratio"] == pytest.approx(each["p50_us"] / each["echo_p50_us"], rel=0.01)
        assert each["reply_bytes"] > 80
