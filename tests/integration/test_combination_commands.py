"""``speculant update``, ``merge``, ``prune`` and ``export`` on real files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from speculant_graph.cli.main import main
from speculant_graph.graph.ngrams import NgramGraph
from support.graphs import assert_same_arrays

TOKENIZER = Path(__file__).parents[2] / "verifier_client" / "speculant_verifier" / "demo" / "model"
FIRST = "The parties agree to the terms of this agreement.\n" * 3
SECOND = "The parties agree that the agreement ends here.\n" * 2


@pytest.fixture
def texts(tmp_path: Path) -> tuple[Path, Path]:
    first, second = tmp_path / "first.txt", tmp_path / "second.txt"
    first.write_text(FIRST, encoding="utf-8")
    second.write_text(SECOND, encoding="utf-8")
    return first, second


def speculant(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


def built(output: Path, *corpus: Path, more: tuple[str, ...] = ()) -> NgramGraph:
    assert speculant("build", *corpus, "-o", output, "--tokenizer", TOKENIZER, *more) == 0
    return NgramGraph.load(output)


@pytest.mark.parametrize("more", [(), ("--document-boundaries",), ("--max-order", "2"), ("--special-tokens", "parse")])
def test_update_and_merge_equal_a_rebuild(
    texts: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...]
) -> None:
    first, second = texts
    whole = built(tmp_path / "whole.pkl", first, second, more=more)
    built(tmp_path / "first.pkl", first, more=more)
    built(tmp_path / "second.pkl", second, more=more)
    capsys.readouterr()
    parts = (tmp_path / "first.pkl", tmp_path / "second.pkl")
    assert speculant("merge", *parts, "-o", tmp_path / "both.pkl", "--json") == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    both = NgramGraph.load(tmp_path / "both.pkl", verify=True)
    assert_same_arrays(both, whole)
    assert summary["tokens"] == whole.metadata.num_tokens == both.metadata.num_tokens
    assert both.metadata.corpus_files == whole.metadata.corpus_files
    assert both.metadata.num_documents == 2
    assert speculant("update", tmp_path / "first.pkl", second) == 0
    assert_same_arrays(NgramGraph.load(tmp_path / "first.pkl", verify=True), whole)
    assert "added tokens" in capsys.readouterr().out


def test_what_contradicts_the_graph_is_one_line(
    texts: tuple[Path, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    first, second = texts
    other_tokenizer = tmp_path_factory.mktemp("tokenizer")
    tokenizer = Tokenizer.from_file(str(TOKENIZER / "tokenizer.json"))
    tokenizer.add_tokens(["agreement"])
    tokenizer.save(str(other_tokenizer / "tokenizer.json"))
    graph, pruned = tmp_path / "graph.pkl", tmp_path / "pruned.pkl"
    built(graph, first)
    before = graph.read_bytes()
    assert speculant("prune", graph, "-o", pruned, "--min-count", 2, "--json") == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["min_count"] == 2
    assert NgramGraph.load(pruned, verify=True).metadata.min_count == 2
    for arguments, message in (
        (("update", graph, second, "--max-order", 3), "the graph has max_order = 5, not 3"),
        (("update", graph, second, "--tokenizer", other_tokenizer), "was built with tokenizer"),
        (("update", pruned, second), "prune afterwards"),
        (("prune", graph, "-o", tmp_path / "x.pkl", "--min-count", 99), "prune to a lower count"),
        (("export", graph, "-o", graph), "--output"),
    ):
        assert speculant(*arguments) in (1, 2)
        error = capsys.readouterr().err
        assert message in error
        assert len(error.splitlines()) == 1
    assert graph.read_bytes() == before
    assert {file.name for file in tmp_path.iterdir()} == {"first.txt", "second.txt", "graph.pkl", "pruned.pkl"}


def test_export(texts: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph, output = tmp_path / "graph.pkl", tmp_path / "lookup.bin"
    metadata = built(graph, texts[0], more=("--max-order", "2")).metadata
    capsys.readouterr()
    assert speculant("export", graph, "-o", output, "--min-share", 0, "--json") == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert report["output"] == str(output)
    assert report["contexts"] == metadata.contexts_per_order[-1]
    assert report["file_bytes"] == 28 * report["contexts"] == output.stat().st_size
    for more in ((), ("--min-share", 0, "--min-count", 2)):
        assert speculant("export", graph, "-o", output, *more, "--json") == 0
        assert 0 < json.loads(capsys.readouterr().out.splitlines()[-1])["contexts"] < report["contexts"]
