"""``speculant bench fleet`` with real sidecars and engines, as short as possible."""

from __future__ import annotations

import json
import os

import pytest

from speculant_graph.cli.main import main

KEYS = {
    "engines", "sidecars", "passes", "asked_share", "draft_ms_p50", "draft_ms_p99", "within_bar", "tokens_per_pass",
    "failed_share", "core_share", "drafting_share", "cpu_us_per_step", "cpu_us_per_drafted_token", "load",
}  # fmt: skip


@pytest.mark.slow
def test_a_small_fleet(capsys: pytest.CaptureFixture[str]) -> None:
    cores = os.sched_getaffinity(0)
    options = ["--engines", "1,2", "--time", "2", "--rows", "4", "-k", "4", "--json"]
    assert main(["bench", "fleet", *options]) == 0
    assert os.sched_getaffinity(0) == cores
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    own = max(1, min(2, len(cores) - 1))
    assert [(each["engines"], each["sidecars"]) for each in figures["results"]] == [(own, own), (2 * own, own)]
    for each in figures["results"]:
        assert each.keys() == KEYS
        assert min(each["passes"], each["cpu_us_per_step"], each["cpu_us_per_drafted_token"]) > 0
        assert each["tokens_per_pass"] >= 1.0
    assert [each["event"] for each in figures["events"]] == ["killed", "started"]
    killed, started = figures["events"]
    assert 0 < killed["share_without_drafts"] < 1
    assert started["used_again_s"] > 0
    assert figures["errors"] == 0
    assert min(figures["session_bytes"], figures["tenant_bytes"]) > figures["tokens_each"]
    assert figures["bar_ms"] == pytest.approx(figures["pass_ms"] / 10, rel=1e-3)
    assert figures["is_simulated"]
