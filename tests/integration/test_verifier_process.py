"""``speculant verifier`` as a process: gRPC and HTTP, metrics, and a lossless end on SIGTERM."""

from __future__ import annotations

import signal
import urllib.error
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from speculant_verifier.demo.run import MODEL_FOLDER
from support.http_api import wait_until
from support.processes import READY_TIMEOUT_S, fetched, running_verifier, started_verifier

SLOWLY = """
import sys, time
from speculant_verifier.model import TargetModel
from speculant_verifier.cli.serve import run

def load(*_):
    print("loading", file=sys.stderr, flush=True)
    time.sleep(3600)

TargetModel.load = load
sys.exit(run(sys.argv[1:]))
"""


@pytest.mark.slow
def test_one_that_is_told_to_end_while_it_loads_ends_at_once(tmp_path: Path) -> None:
    with started_verifier(tmp_path, program=("-c", SLOWLY)) as (process, log_path):
        wait_until(lambda: "loading" in log_path.read_text(encoding="utf-8") or process.poll() is not None)
        assert (tmp_path / "verifier.sock").exists()
        process.send_signal(signal.SIGTERM)
        assert process.wait(READY_TIMEOUT_S) == 0, log_path.read_text(encoding="utf-8")
    assert not (tmp_path / "verifier.sock").exists()
    assert "Traceback" not in log_path.read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_second_ctrl_c_does_not_wait_for_what_runs(tmp_path: Path) -> None:
    with running_verifier(tmp_path) as verifier, ThreadPoolExecutor(1) as pool:
        body = {"model": MODEL_FOLDER.name, "prompt": "a", "n": 16, "max_tokens": 4000, "ignore_eos": True}
        answer = pool.submit(fetched, f"{verifier.url}/completions", body)
        wait_until(lambda: verifier.metrics["speculant_verifier_running_sequences"])
        verifier.process.send_signal(signal.SIGINT)
        wait_until(lambda: "a second signal stops it at once" in verifier.log)
        assert verifier.process.poll() is None
        verifier.process.send_signal(signal.SIGINT)
        assert verifier.process.wait(READY_TIMEOUT_S) == 0, verifier.log
        assert "16 sequences are cut off" in verifier.log
        with pytest.raises(urllib.error.HTTPError) as caught:
            answer.result()
        assert caught.value.code == 503
        caught.value.close()
    assert not (tmp_path / "verifier.sock").exists()
