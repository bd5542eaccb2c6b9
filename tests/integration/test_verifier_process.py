"""``speculant verifier`` as a process: both ways in, metrics, and an end by SIGTERM that loses nothing."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request

from speculant_verifier.demo.run import MODEL_FOLDER


def asked(url, body=None):
    request = urllib.request.Request(url, json.dumps(body).encode() if body else None)
    request.add_header("content-type", "application/json")
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read().decode()


def test_a_process_serves_text_and_metrics_and_ends_cleanly(tmp_path):
    command = [
        sys.executable, "-m", "speculant_graph.cli.main", "verifier", "--model", str(MODEL_FOLDER),
        "--listen", f"unix://{tmp_path}/v.sock", "--http", "127.0.0.1:0", "--strategy", "tree", "--num-threads", "1",
        "--no-measure-costs",
    ]  # fmt: skip
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            line = next(line for line in process.stderr if "verifier ready" in line)
            base = line.split()[-1]
            assert f"unix://{tmp_path}/v.sock" in line
            assert base.startswith("http://127.0.0.1:")
            model = json.loads(asked(f"{base}/models"))["data"][0]["id"]
            body = {"model": model, "prompt": "def wrap(self, text):\n", "max_tokens": 30, "temperature": 0}
            answer = json.loads(asked(f"{base}/completions", body))
            assert answer["usage"]["completion_tokens"] == 30
            root = base.removesuffix("/v1")
            assert asked(f"{root}/healthz").strip() == "ok"
            metrics = asked(f"{root}/metrics")
            assert "speculant_verifier_tokens_total 30.0" in metrics
            assert 'speculant_verifier_drafter_state{state="ok"} 1.0' in metrics
            assert 'speculant_verifier_sequences_total{reason="length"} 1.0' in metrics
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert not (tmp_path / "v.sock").exists()
