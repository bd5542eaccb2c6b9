"""vLLM's server under many concurrent requests, with a sidecar that is killed and restarted meanwhile."""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from speculant_graph.bench.processes import OwnDrafter, free_port
from speculant_graph.corpus.tokenize import CorpusTokenizer
from speculant_verifier.bench.engines import PROPOSER
from speculant_verifier.demo.corpus import beginnings
from speculant_verifier.demo.run import MODEL_FOLDER
from support.real_engines import installed, v2_environment

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1_800)]

_AT_A_TIME = 12
_TOKENS = 100


class _Server:
    def __init__(self, address: str) -> None:
        self.address = address

    def complete(self, prompt: list[int]) -> list[int]:
        body = {
            "model": "demo", "prompt": prompt, "max_tokens": _TOKENS, "temperature": 0, "return_token_ids": True
        }  # fmt: skip
        request = urllib.request.Request(
            f"{self.address}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=300) as answer:
            return json.load(answer)["choices"][0]["token_ids"]

    def complete_all(self, prompts: list[list[int]]) -> list[list[int]]:
        with ThreadPoolExecutor(_AT_A_TIME) as pool:
            return list(pool.map(self.complete, prompts))

    def metric(self, name: str) -> float:
        with urllib.request.urlopen(f"{self.address}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((f"{name}{{", f"{name} ")))


@contextmanager
def _serving(checkpoint: Path, folder: Path, settings: dict[str, Any] | None, runner: str = "V1") -> Iterator[_Server]:
    port = free_port()
    speculative = {"method": "custom_class", "model": PROPOSER, "num_speculative_tokens": 8}
    drafting = [] if settings is None else [
        "--speculative-config", json.dumps(speculative), "--additional-config", json.dumps({"speculant": settings})
    ]  # fmt: skip
    log = folder / f"vllm-{port}.log"
    with log.open("w") as messages:
        process = subprocess.Popen(
            [str(installed("vllm/bin/python")), "-m", "vllm.entrypoints.openai.api_server", "--model", str(checkpoint),
             "--served-model-name", "demo", "--host", "127.0.0.1", "--port", str(port), "--dtype", "float32",
             "--enforce-eager", "--max-model-len", "512", "--max-num-seqs", "8", "--no-enable-prefix-caching",
             *drafting],
            stdout=messages,
            stderr=messages,
            cwd=folder,
            env={**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1",
                 **(v2_environment() if runner == "V2" else {})},
        )  # fmt: skip
    server = _Server(f"http://127.0.0.1:{port}")
    try:
        deadline = time.monotonic() + 300
        while True:
            assert process.poll() is None, log.read_text()[-3_000:]
            assert time.monotonic() < deadline, "vLLM does not start"
            try:
                urllib.request.urlopen(f"{server.address}/health", timeout=1).close()
                break
            except (OSError, urllib.error.URLError):
                time.sleep(0.5)
        if settings is not None:
            assert f"speculant-graph drafts with the {runner} model runner" in log.read_text()
        yield server
    finally:
        process.terminate()
        process.wait(60)


@pytest.mark.parametrize("runner", ["V1", "V2"])
def test_no_request_fails_and_no_token_differs_when_the_sidecar_is_killed(
    checkpoint: Path, graph: Path, tmp_path: Path, runner: str
) -> None:
    tokenizer = CorpusTokenizer.load(MODEL_FOLDER, special_tokens="parse")
    prompts = [tokenizer.encode_prompt(text) for text in beginnings(24)]
    with _serving(checkpoint, tmp_path, None, runner) as server:
        plain = server.complete_all(prompts)
    drafter = OwnDrafter(graph, f"unix://{tmp_path}/d.sock")
    try:
        settings = {"client": {"address": drafter.address, "deadline_ms": 100}}
        with _serving(checkpoint, tmp_path, settings, runner) as server:
            assert server.complete_all(prompts) == plain
            drafted = server.metric("vllm:spec_decode_num_draft_tokens_total")
            assert drafted > 0
            with ThreadPoolExecutor(1) as pool:
                outcome = pool.submit(server.complete_all, prompts * 3)
                time.sleep(1.0)
                drafter.kill_and_start()
                assert outcome.result() == plain * 3
            drafted = server.metric("vllm:spec_decode_num_draft_tokens_total")
            assert server.complete_all(prompts) == plain
            assert server.metric("vllm:spec_decode_num_draft_tokens_total") > drafted, "drafts come back"
            drafter.close()
            assert server.complete_all(prompts) == plain
    finally:
        drafter.close()


def test_what_was_accepted_is_drafted_after_a_restart(checkpoint: Path, tmp_path: Path) -> None:
    """vLLM kills the model's process immediately, so accepted text is learned with the next request."""
    tokenizer = CorpusTokenizer.load(MODEL_FOLDER, special_tokens="parse")
    prompt, other = [tokenizer.encode_prompt(text) for text in beginnings(2)]
    written: list[list[int]] = []
    offered: list[float] = []
    for _ in range(2):
        with _serving(checkpoint, tmp_path, {"learned": "learned", "draft": {"sources": ["learned"]}}) as server:
            written.append(server.complete(prompt))
            server.complete(other)
            time.sleep(3.0)  # until it is on disk
            offered.append(server.metric("vllm:spec_decode_num_accepted_tokens_total"))
    assert written[0] == written[1]
    assert len(written[0]) > 16
    assert offered[0] == 0
    assert offered[1] > len(written[0]) / 4
