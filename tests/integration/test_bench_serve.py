"""``speculant bench serve`` with real servers: its counts, its reports of failures, and a killed drafter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from speculant_graph.cli.main import main
from support.http_api import serving, tiny_decoder

SMALL = ["--streams", "3", "--requests", "5", "--rounds", "1", "--max-tokens", "12", "--json"]
VARIANTS = ("plain", "speculative")


def measured(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any], str]:
    status = main(["bench", "serve", *arguments])
    out = capsys.readouterr().out
    return status, json.loads(out.splitlines()[-1]), out


def test_a_running_service_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("Once\nTwice\n", encoding="utf-8")
    with tiny_decoder(max_batch_size=4) as decoder, serving(decoder) as api:
        url = f"{api.url}/v1"
        status, figures, _ = measured(capsys, "--url", url, "--prompts", str(prompts), "--temperature", "1", *SMALL)
        totals = decoder.totals
    assert status == 0
    assert figures["failed"] == 0
    assert figures["identical"] is True
    assert totals.num_tokens == (2 * 5 + 4) * 12  # both modes, and the warm-up
    assert figures["steps_without_drafter"] == figures["drafter_kills"] == 0
    for variant in VARIANTS:
        assert figures[f"{variant}_tokens_per_s"] > 0
        assert 0 < figures[f"{variant}_ttft_ms_p50"] <= figures[f"{variant}_ttft_ms_p99"]
    assert figures["mean_accepted_tokens"] >= 1


@pytest.mark.parametrize(
    "url",
    [
        "nonsense",
        "127.0.0.1:8000/v1",
        "ftp://127.0.0.1/v1",
        "http://",
        "http://127.0.0.1:99999/v1",
        "http://a:b",
        "http://\0",
    ],
)
def test_what_is_no_url_is_refused(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "serve", "--url", url]) == 2
    said = capsys.readouterr().err
    assert said.endswith("is not the URL of a server; write http://host:port/v1\n")
    assert said.count("\n") == 1


def test_failures_are_counted_and_named(capsys: pytest.CaptureFixture[str]) -> None:
    with tiny_decoder(max_batch_size=1) as decoder, serving(decoder, max_waiting=1) as api:
        status, figures, out = measured(capsys, "--url", f"{api.url}/v1", *SMALL)
    assert status == 1
    assert figures["failed"] > 0
    assert figures["identical"] is False
    assert any("status 429" in failure for failure in figures["failures"])
    assert "status 429" in out


@pytest.mark.slow
@pytest.mark.faults
def test_a_drafter_of_its_own_is_killed_and_no_request_fails(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--streams", "8", "--requests", "60", "--rounds", "1", "--kill-drafter", "--json"]
    status, figures, _ = measured(capsys, *arguments)
    assert status == 0
    assert (figures["failed"], figures["identical"], figures["drafter_kills"]) == (0, True, 1)
    assert figures["steps_without_drafter"] > 0
    assert figures["acceptance_rate"] > 0
