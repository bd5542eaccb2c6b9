"""The benches: their keys are a contract, and what they compare does the same work."""

from __future__ import annotations

import importlib
import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculant_graph.bench.build import build_in_child, compare_counting, count_into_network
from speculant_graph.bench.dictionary import DictionaryGraph, count_by_iterators
from speculant_graph.bench.latency import Contender, graph_contexts, measure_latencies, text_contexts
from speculant_graph.bench.memory import measure_sharing
from speculant_graph.bench.tokens import first_tokens
from speculant_graph.cli.bench import BENCHES, run
from speculant_graph.config import GraphConfig
from speculant_graph.corpus.stream import write_token_stream
from speculant_graph.corpus.tokenize import CorpusTokenizer
from speculant_graph.errors import ConfigError, GraphError, TokenizerMismatchError
from speculant_graph.graph.build.builder import build_from_token_ids
from speculant_graph.graph.build.count import map_tokens
from speculant_graph.settings import CommandSettings
from speculant_graph.types import Fingerprint
from support.oracle import OracleGraph

BUILD_KEYS = {
    "tokens", "tokenize_s", "count_s", "total_s", "tokens_per_cpu_s", "peak_anon_bytes", "file_bytes", "nodes",
    "bytes_per_node", "bytes_per_token", "dict_cpu_ratio", "engine", "machine", "command",
}  # fmt: skip
LOOKUP_KEYS = {
    "p50_us", "p99_us", "dict_p50_us", "dict_ratio", "open_ms", "pss_bytes_per_process", "machine", "command",
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
    report = bench("build", "--corpus", corpus, "-o", kept, "--max-order", 3, "--dict-tokens", 500, "--jobs", 1)
    assert report.keys() >= BUILD_KEYS
    assert report["file_bytes"] == kept.stat().st_size
    assert report["text_bytes"] == corpus.stat().st_size
    assert report["dict_tokens"] == 500
    assert report["max_order"] == 3
    assert report["engine"] == "local"
    assert all(float(str(report[key])) > 0 for key in BUILD_KEYS - {"engine", "machine", "command"})
    assert report["command"][:3] == ["speculant", "bench", "build"]  # type: ignore[index]


@pytest.mark.slow
def test_bench_lookup(bench: Run, corpus: Path, tmp_path: Path, tokenizer_folder: Path) -> None:
    report = bench("lookup", "--corpus", corpus, "--num-tokens", 1_000, "--seconds", 0.2)
    assert report.keys() >= LOOKUP_KEYS
    assert report["identical"] is True
    assert report["held_tokens"] == 1_000
    assert report["p50_us"] == report["small_p50_us"]
    assert 0 < int(str(report["pss_bytes_per_process"])) <= int(str(report["rss_bytes_per_process"]))
    config = GraphConfig(tokenizer_name=str(tokenizer_folder), max_order=2)
    build_in_child([corpus], tmp_path / "large.pkl", config)
    options = ("--graph", tmp_path / "large.pkl", "--held", corpus, "--num-tokens", 1_000, "--seconds", 0.2)
    report = bench("lookup", "--corpus", corpus, *options)
    assert report["graph_tokens"] != report["dict_tokens"] == 1_000
    assert report["file_bytes"] == (tmp_path / "large.pkl").stat().st_size
    assert "seen_dict_ratio" in report


def test_a_corpus_with_nothing_to_hold_out(bench: Run, corpus: Path) -> None:
    report = bench("lookup", "--corpus", corpus, "--num-tokens", 10**6, "--seconds", 0.1)
    assert report["held_tokens"] == 0
    assert "seen_dict_ratio" not in report


def test_the_list_of_benches(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["--help"]):
        assert run(arguments) == 0
        shown = capsys.readouterr().out
        assert shown.startswith("usage: speculant bench")
        assert all(name in shown for name in BENCHES)
    with pytest.raises(ConfigError, match=r"no bench 'biuld'.*build, lookup"):
        run(["biuld"])


def test_refusals(corpus: Path, tmp_path: Path, tokenizer_folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tokenizer = ["--tokenizer", str(tokenizer_folder)]
    with pytest.raises(ConfigError, match="standard input"):
        run(["build", "--corpus", "-", *tokenizer])
    with pytest.raises(GraphError, match="status 1"):
        run(["build", "--corpus", str(corpus), "-o", str(tmp_path / "no" / "g.pkl"), *tokenizer])
    assert "there is no folder" in capfd.readouterr().err
    other = tmp_path / "other.pkl"
    build_from_token_ids([1, 2, 3], FINGERPRINT).save(other)
    with pytest.raises(TokenizerMismatchError):
        run(["lookup", "--corpus", str(corpus), "--graph", str(other), *tokenizer])


@given(
    token_ids=st.lists(st.integers(0, 4), max_size=60),
    max_order=st.integers(1, 5),
    context=st.lists(st.integers(0, 5), max_size=8),
    k=st.integers(0, 12),
)
def test_the_dictionary_is_the_oracle(token_ids: list[int], max_order: int, context: list[int], k: int) -> None:
    slow, plain = OracleGraph([token_ids], max_order), DictionaryGraph(token_ids, max_order)
    assert plain.contexts == slow.context_index
    assert count_by_iterators(token_ids, max_order) == slow.context_index
    assert plain.draft(context, k) == slow.draft(context, k, "greedy")[0]
    assert plain.contexts == slow.context_index, "drafting adds nothing"
    network = count_into_network(token_ids, max_order)
    edges = {(context, token): data["count"] for context, token, data in network.edges(data=True)}
    counts = {(context, token): n for context, row in slow.context_index.items() for token, n in row.items()}
    assert edges == counts


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


def test_contenders_that_disagree_are_noticed() -> None:
    contexts = np.zeros((60, 2), np.uint32)
    right, wrong = Contender("right", lambda _: [1, 2], contexts), Contender("wrong", lambda _: [1, 3], contexts)
    assert measure_latencies([right, Contender("same", lambda _: (1, 2), contexts)], 9).num_different == 0
    latencies = measure_latencies([right, wrong, Contender("other", lambda _: [9], contexts.copy())], 9)
    assert latencies.num_different == latencies.num_rounds == 60
    assert latencies.times_us["wrong"].shape == (60,)


def test_contexts_of_texts() -> None:
    first, second = np.arange(20, dtype=np.uint32), np.arange(100, 130, dtype=np.uint32)
    drawn = text_contexts([first, second], 1_001, 4, np.random.default_rng(0))
    assert np.all(np.diff(drawn.astype(np.int64), axis=1) == 1), "windows of the texts"
    assert set(drawn[::2, 0].tolist()) == set(range(17))
    assert np.all(drawn[1::2] >= 100)
    with pytest.raises(ConfigError, match="fewer than 21"):
        text_contexts([first], 1, 21, np.random.default_rng(0))


def test_contexts_of_a_graph_are_as_frequent_as_in_its_text() -> None:
    token_ids = [1, 2, 3] * 200 + [4, 5, 6] * 100
    graph = build_from_token_ids(token_ids, FINGERPRINT, max_order=3)
    drawn = Counter(map(tuple, graph_contexts(graph, 20_000, np.random.default_rng(1)).tolist()))
    ngrams = Counter(zip(token_ids, token_ids[1:], token_ids[2:], strict=False))
    assert drawn.keys() <= ngrams.keys()
    for ngram, count in ngrams.items():
        assert drawn[ngram] / 20_000 == pytest.approx(count / ngrams.total(), abs=0.02)


def test_processes_share_the_pages_of_a_graph(tmp_path: Path) -> None:
    path = tmp_path / "graph.pkl"
    generator = np.random.default_rng(5)
    graph = build_from_token_ids(generator.integers(0, 50, 60_000).astype(np.uint32), FINGERPRINT)
    graph.save(path)
    sharing = measure_sharing(path, 2)
    assert sharing.num_processes == 2
    assert sharing.open_ms > 0
    assert sharing.rss_bytes >= 0.9 * path.stat().st_size, "every page was read"
    assert sharing.pss_bytes < 0.6 * sharing.rss_bytes
    assert sharing.private_dirty_bytes == 0
    with pytest.raises(GraphError, match="can't be opened in a new process"):
        measure_sharing(tmp_path / "missing.pkl", 1)


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
