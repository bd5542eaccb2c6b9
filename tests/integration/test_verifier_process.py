"""``speculant verifier`` as a process: both ways in, metrics, and an end by SIGTERM that loses nothing."""

from __future__ import annotations

import json
import signal
import time
import urllib.error
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from speculant_verifier.demo.run import MODEL_FOLDER
from support.sidecar import READY_TIMEOUT_S
from support.verifier import fetched, running_verifier, started_verifier


def until(holds: Callable[[], object]) -> None:
    give_up_s = time.monotonic() + READY_TIMEOUT_S
    while not holds():
        assert time.monotonic() < give_up_s
        time.sleep(0.02)


@pytest.mark.slow
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


SLOWLY = """
import sys, time
from speculant_verifier.model import TargetModel
from speculant_verifier.service.command import run

def load(*_):
    print("loading", file=sys.stderr, flush=True)
    time.sleep(3600)

TargetModel.load = load
sys.exit(run(sys.argv[1:]))
"""


@pytest.mark.slow
def test_one_that_is_told_to_end_while_it_loads_ends_at_once(tmp_path: Path) -> None:
    with started_verifier(tmp_path, program=("-c", SLOWLY)) as (process, log_path):
        until(lambda: "loading" in log_path.read_text(encoding="utf-8") or process.poll() is not None)
        assert (tmp_path / "verifier.sock").exists()
        process.send_signal(signal.SIGTERM)
        assert process.wait(READY_TIMEOUT_S) == 0, log_path.read_text(encoding="utf-8")
    assert not (tmp_path / "verifier.sock").exists()
    assert "Traceback" not in log_path.read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_second_ctrl_c_does_not_wait_for_what_runs(tmp_path: Path) -> None:
    with running_verifier(tmp_path, "--grace-s", "3600") as verifier, ThreadPoolExecutor(1) as pool:
        body = {"model": MODEL_FOLDER.name, "prompt": "a", "n": 16, "max_tokens": 4000, "ignore_eos": True}
        answer = pool.submit(fetched, f"{verifier.url}/completions", body)
        until(lambda: verifier.metrics["speculant_verifier_running_sequences"])
        verifier.process.send_signal(signal.SIGINT)
        until(lambda: "a second signal ends it at once" in verifier.log)
        assert verifier.process.poll() is None
        verifier.process.send_signal(signal.SIGINT)
        assert verifier.process.wait(READY_TIMEOUT_S) == 0, verifier.log
        assert "16 sequences are cut off" in verifier.log
        with pytest.raises(urllib.error.HTTPError, match="503") as caught:
            answer.result()
        caught.value.close()
    assert not (tmp_path / "verifier.sock").exists()
