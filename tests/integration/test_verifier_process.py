"""``speculant verifier`` as a process: both ways in, metrics, and an end by SIGTERM that loses nothing."""

from __future__ import annotations

import json
from pathlib import Path

from support.verifier import fetched, running_verifier


def test_a_process_serves_text_and_metrics_and_ends_cleanly(tmp_path: Path) -> None:
    with running_verifier(tmp_path, "--strategy", "tree") as verifier:
        assert verifier.address == f"unix://{tmp_path}/verifier.sock"
        assert verifier.url.startswith("http://127.0.0.1:")
        model = json.loads(fetched(f"{verifier.url}/models"))["data"][0]["id"]
        body = {"model": model, "prompt": "def wrap(self, text):\n", "max_tokens": 30, "temperature": 0}
        answer = json.loads(fetched(f"{verifier.url}/completions", body))
        assert answer["usage"]["completion_tokens"] == 30
        assert fetched(f"{verifier.url.removesuffix('/v1')}/healthz").strip() == "ok"
        metrics = verifier.metrics
        assert metrics["speculant_verifier_tokens_total"] == 30
        assert metrics['speculant_verifier_drafter_state{state="ok"}'] == 1
        assert metrics['speculant_verifier_sequences_total{reason="length"}'] == 1
    assert not (tmp_path / "verifier.sock").exists()
