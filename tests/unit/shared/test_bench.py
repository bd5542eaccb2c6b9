"""The benches: their keys are a contract, and what they compare does the same work."""

from __future__ import annotations

import importlib
import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculant_graph.bench.build import compare_counting
from speculant_graph.bench.dictionary import count_by_hand, count_by_iterators
from speculant_graph.bench.tokens import first_tokens
from speculant_graph.cli.bench import BENCHES, run
from speculant_graph.config import GraphConfig
from speculant_graph.corpus.stream import write_token_stream
from speculant_graph.corpus.tokenize import CorpusTokenizer
from speculant_graph.errors import ConfigError, GraphError
from speculant_graph.graph.build.count import map_tokens
from speculant_graph.settings import CommandSettings
from speculant_graph.types import Fingerprint
from support.oracle import OracleGraph

BUILD_KEYS = {
    "tokens", "tokenize_s", "count_s", "total_s", "tokens_per_cpu_s", "peak_anon_bytes", "file_bytes", "nodes",
    "bytes_per_node", "bytes_per_token", "dict_cpu_ratio", "machine", "command",
}  # fmt: skip
FINGERPRINT = Fingerprint("test", "00" * 32, 50)

Run = Callable[..., dict[str, object]]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A text that is long enough for contexts."""
    words = ["the", "parties", "agree", "to", "terms", "of", "agreement", "value", "return", "sample"]
    generator = random.Random(3)
    path = tmp_path / "corpus.txt"
    path.write_text(" ".join(generator.choice(words) for _ in range(4_000)), encoding="utf-8")
    return path


@pytest.fixture
def bench(capsys: pytest.CaptureFixture[str], tokenizer_folder: Path) -> Run:
    """Run a bench and return its JSON object, which must be the last line."""

    def run_bench(name: str, *arguments: object) -> dict[str, object]:
        assert run([name, *map(str, arguments), "--tokenizer", str(tokenizer_folder), "--json"]) == 0
        report: dict[str, object] = json.loads(capsys.readouterr().out.splitlines()[-1])
        return report

    return run_bench


def test_bench_build(bench: Run, corpus: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept.pkl"
    report = bench("build", "--corpus", corpus, "-o", kept, "--max-order", 3, "--dict-tokens", 500)
    assert report.keys() >= BUILD_KEYS
    assert report["file_bytes"] == kept.stat().st_size
    assert report["text_bytes"] == corpus.stat().st_size
    assert report["dict_tokens"] == 500
    assert report["max_order"] == 3
    assert all(float(str(report[key])) > 0 for key in BUILD_KEYS - {"machine", "command"})
    assert report["command"][:3] == ["speculant", "bench", "build"]  # type: ignore[index]


def test_the_list_of_benches(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["--help"]):
        assert run(arguments) == 0
        shown = capsys.readouterr().out
        assert shown.startswith("usage: speculant bench")
        assert all(name in shown for name in BENCHES)
    with pytest.raises(ConfigError, match=r"no bench 'biuld'.*build, start"):
        run(["biuld"])


def test_refusals(corpus: Path, tmp_path: Path, tokenizer_folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tokenizer = ["--tokenizer", str(tokenizer_folder)]
    with pytest.raises(ConfigError, match="standard input"):
        run(["build", "--corpus", "-", *tokenizer])
    with pytest.raises(GraphError, match="status 1"):
        run(["build", "--corpus", str(corpus), "-o", str(tmp_path / "no" / "g.pkl"), *tokenizer])
    assert "there is no folder" in capfd.readouterr().err


@given(token_ids=st.lists(st.integers(0, 4), max_size=60), max_order=st.integers(1, 5))
def test_plain_python_counts_as_the_oracle(token_ids: list[int], max_order: int) -> None:
    slow = OracleGraph([token_ids], max_order).context_index
    assert count_by_hand(token_ids, max_order) == slow
    assert count_by_iterators(token_ids, max_order) == slow


def test_counting_is_compared_on_the_same_tokens() -> None:
    token_ids = np.arange(2_000, dtype=np.uint32) % 50
    report = compare_counting(token_ids, FINGERPRINT, 2)
    assert report["dict_tokens"] == 2_000
    assert all(value >= 0 for value in report.values())  # type: ignore[operator]


@pytest.mark.parametrize("num_tokens", [1, 7, 300, 10**6])
def test_first_tokens_are_those_of_a_build(num_tokens: int, tmp_path: Path, tokenizer_folder: Path) -> None:
    paths = [tmp_path / name for name in ("a.txt", "b.jsonl", "c.txt")]
    paths[0].write_text("The parties agree.\n" * 30, encoding="utf-8")
    paths[1].write_text('{"text": "a sample"}\n{"text": ""}\n{"text": "another"}\n', encoding="utf-8")
    paths[2].write_text("", encoding="utf-8")
    tokenizer, config = CorpusTokenizer.load(tokenizer_folder), GraphConfig()
    stream = write_token_stream(tokenizer, paths, tmp_path / "tokens", config)
    expected = map_tokens(stream.path)[:num_tokens].tolist()
    assert first_tokens(tokenizer, paths, config, num_tokens).tolist() == expected


@pytest.mark.parametrize("bench", BENCHES)
def test_help_says_how_few_are_taken(bench: str) -> None:
    pytest.importorskip("torch")
    module = importlib.import_module(BENCHES[bench][0])
    kinds = [each for each in vars(module).values() if isinstance(each, type) and issubclass(each, CommandSettings)]
    assert len(kinds) > 1
    for name, field in (pair for kind in kinds for pair in kind.model_fields.items()):
        for bound in field.metadata:
            if getattr(bound, "ge", 0) > 1:
                assert f"at least {bound.ge:,}" in (field.description or ""), name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "options", "keys"),
    [
        ("draft", ["--drafts", "80", "--learned", "1000"], {"tree_p50_us", "tight_tree_p50_us", "batch_ratio"}),
        ("lookup", ["--tokens", "200000", "--seconds", "0.5"], {"p50_us", "dict_ratio", "open_ms", "identical"}),
    ],
)
def test_scripts_that_measure_our_own_kernels(script: str, options: list[str], keys: set[str]) -> None:
    path = Path(__file__).parents[2] / "perf" / f"{script}.py"
    result = subprocess.run([sys.executable, path, *options], capture_output=True, text=True, check=True, timeout=300)
    figures = json.loads(result.stdout.splitlines()[-1])
    assert figures.keys() >= keys | {"machine", "command"}
    assert figures.get("identical", True), "a dict drafts the same tokens"
