"""The benchmarks: their JSON keys are fixed, and the compared implementations do the same work."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculant_graph.bench.build import count_by_hand, count_by_iterators
from speculant_graph.cli.bench import run
from speculant_graph.errors import ConfigError
from support.oracle import OracleGraph

BUILD_KEYS = {
    "tokens", "tokenize_s", "count_s", "total_s", "tokens_per_cpu_s", "peak_anon_bytes", "file_bytes", "nodes",
    "bytes_per_node", "bytes_per_token", "dict_cpu_ratio", "fast_dict_cpu_ratio",
}  # fmt: skip


def test_bench_build(tmp_path: Path, tokenizer_folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    corpus = tmp_path / "corpus.txt"
    words = ["the", "parties", "agree", "to", "terms", "of", "agreement", "value", "return", "sample"]
    corpus.write_text(" ".join(random.Random(3).choices(words, k=1_500)), encoding="utf-8")
    command = ["build", "--corpus", str(corpus), "--tokenizer", str(tokenizer_folder)]
    assert run([*command, "--max-order", "3", "--dict-tokens", "500", "--json"]) == 0
    report = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert all(report[key] > 0 for key in BUILD_KEYS)
    assert report["text_bytes"] == corpus.stat().st_size
    assert (report["dict_tokens"], report["max_order"]) == (500, 3)
    assert report["command"][:3] == ["speculant", "bench", "build"]
    assert report["machine"]
    with pytest.raises(ConfigError) as caught:
        run(["build", "--corpus", "-", "--tokenizer", str(tokenizer_folder)])
    assert caught.value.field == "corpus"


@given(token_ids=st.lists(st.integers(0, 4), max_size=60), max_order=st.integers(1, 5))
def test_plain_python_counts_as_the_oracle(token_ids: list[int], max_order: int) -> None:
    slow = OracleGraph([token_ids], max_order).context_index
    assert count_by_hand(token_ids, max_order) == slow
    assert count_by_iterators(token_ids, max_order) == slow


@pytest.mark.slow
def test_the_script_that_measures_our_own_kernels() -> None:
    script = Path(__file__).parents[2] / "perf" / "draft.py"
    command = [sys.executable, script, "--drafts", "80", "--learned", "1000"]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    figures = json.loads(result.stdout.splitlines()[-1])
    keys = {"tree_p50_us", "batch_ratio", "lookup_p50_us", "dict_ratio", "open_ms", "machine", "command"}
    assert figures.keys() >= keys
    assert figures["identical"], "a dict drafts the same tokens"


@pytest.mark.slow
def test_the_script_that_checks_large_builds() -> None:
    script = Path(__file__).parents[2] / "perf" / "large.py"
    command = [sys.executable, script, "--megabytes", "1", "--contexts", "6"]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    figures = json.loads(result.stdout.splitlines()[-1])
    assert figures["right"]
    assert figures["within_bound"]
    assert 0 < figures["peak_anon_bytes"] <= figures["bound_bytes"]
    assert figures["compared"] > 30
