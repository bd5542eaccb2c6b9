"""``speculant inspect``: its figures match the graph, and shown texts can't control the terminal."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from speculant_graph.cli.inspect import run
from speculant_graph.cli.main import main
from speculant_graph.config import GraphConfig
from speculant_graph.corpus.source import CorpusFile
from speculant_graph.corpus.tokenize import CorpusTokenizer
from speculant_graph.errors import ConfigError, GraphFileError
from speculant_graph.graph.build.builder import GraphBuilder, build_from_token_ids
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.types import Fingerprint
from support.oracle import OracleGraph

TEXT = "a[i] = b[/j]\n\tthe value of a\x1b[31m\n" * 20 + "the value of b\n" * 5


@pytest.fixture
def folder(tmp_path: Path, plain_tokenizer_folder: Path) -> Path:
    """A folder with a tokenizer, a text and its graph of orders 1 to 3."""
    shutil.copytree(plain_tokenizer_folder, tmp_path / "tokenizer")
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    builder = GraphBuilder(tokenizer_name=tmp_path / "tokenizer", max_order=3)
    builder.build(tmp_path / "text.txt", tmp_path / "g.pkl")
    return tmp_path


def inspect(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[str, dict[str, object]]:
    assert run([*map(str, arguments), "--json"]) == 0
    shown = capsys.readouterr().out
    return shown, json.loads(shown.splitlines()[-1])


def test_what_a_graph_holds(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown, report = inspect(capsys, folder / "g.pkl", "--top", 2)
    graph = NgramGraph.load(folder / "g.pkl")
    tokenizer = CorpusTokenizer.load(folder / "tokenizer")
    assert report["tokens"] == graph.metadata.num_tokens == len(tokenizer.encode(TEXT))
    assert report["nodes"] == sum(graph.metadata.nodes_per_level)
    assert report["file_bytes"] == (folder / "g.pkl").stat().st_size
    assert report["bytes_per_node"] == pytest.approx(report["file_bytes"] / report["nodes"], abs=0.01)  # type: ignore[operator]
    assert report["files"] == 1
    assert report["text_bytes"] == len(TEXT)
    assert report["document_boundaries"] is GraphConfig().document_boundaries
    assert report["min_count"] == 1
    assert report["tokenizer_sha256"] == graph.metadata.tokenizer.sha256
    assert report["verified"] is False
    assert "checksums" not in shown
    top: list[list[dict[str, object]]] = report["top_ngrams"]  # type: ignore[assignment]
    for length, ngrams in enumerate(top, start=1):
        expected = graph.most_common(2, length)
        assert [(tuple(ngram["token_ids"]), ngram["count"]) for ngram in ngrams] == expected  # type: ignore[arg-type]
        assert [ngram["text"] for ngram in ngrams] == [tokenizer.decode(ngram) for ngram, _ in expected]
    assert "\x1b" not in shown, "no text reaches the terminal as it is"


def test_verify_reads_every_array(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown, report = inspect(capsys, folder / "g.pkl", "--verify")
    assert report["verified"] is True
    assert "all arrays have their checksums and fit together" in shown
    content = bytearray((folder / "g.pkl").read_bytes())
    graph = NgramGraph.load(folder / "g.pkl")
    content[-4 * graph.vocabulary_size] ^= 1  # in the last array
    (folder / "g.pkl").write_bytes(content)
    inspect(capsys, folder / "g.pkl")
    with pytest.raises(GraphFileError):
        run([str(folder / "g.pkl"), "--verify"])


def test_what_follows_a_prompt(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown, report = inspect(capsys, folder / "g.pkl", "--prompt", "the value of", "--top", 2, "-k", 4)
    tokenizer = CorpusTokenizer.load(folder / "tokenizer")
    context, slow = tokenizer.encode("the value of"), OracleGraph([tokenizer.encode(TEXT)], 3)
    assert report["draft_token_ids"] == slow.draft(context, 4, "greedy")[0]
    assert repr(report["draft_text"]) in shown
    orders: list[dict[str, object]] = report["orders"]  # type: ignore[assignment]
    assert [order["order"] for order in orders] == [3, 2, 1]
    for order in orders:
        ngram = tuple(context[-int(str(order["order"])) :])
        counts = slow.context_index[ngram]
        assert order["context_token_ids"] == list(ngram)
        assert order["count"] == counts.total()
        assert order["num_successors"] == len(counts)
        best = sorted(counts, key=lambda token: (-counts[token], token))[:2]
        found = order["successors"]
        assert [item["token_id"] for item in found] == best  # type: ignore[attr-defined]
        assert [item["count"] for item in found] == [counts[token] for token in best]  # type: ignore[attr-defined]
        for item in found:  # type: ignore[attr-defined]
            assert item["probability"] == pytest.approx(item["count"] / counts.total(), abs=1e-6)


def test_coverage_of_a_text(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown, report = inspect(capsys, folder / "g.pkl", "--coverage", folder / "text.txt")
    coverage: dict[str, object] = report["coverage"]  # type: ignore[assignment]
    assert coverage["known"] == 1.0
    assert coverage["tokens"] == report["tokens"]
    assert 0.5 < float(str(coverage["right"])) < 1
    assert [order["known"] for order in coverage["orders"]] == [1.0, 1.0, 1.0]  # type: ignore[attr-defined]
    assert f"{coverage['right']:.1%}" in shown


def test_without_the_tokenizer_ids_are_shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "tokenizer").rename(folder / "moved")
    shown, report = inspect(capsys, folder / "g.pkl", "--top", 1)
    assert "only token ids" in shown
    top: list[list[dict[str, object]]] = report["top_ngrams"]  # type: ignore[assignment]
    assert all(ngram["text"] is None and ngram["token_ids"] for ngrams in top for ngram in ngrams)
    with pytest.raises(ConfigError):
        run([str(folder / "g.pkl"), "--prompt", "x"])
    _, report = inspect(capsys, folder / "g.pkl", "--prompt", "the value", "--tokenizer", folder / "moved")
    assert report["draft_token_ids"]
    shown, _ = inspect(capsys, folder / "g.pkl", "--tokenizer", folder / "moved")
    assert "only token ids" not in shown


def with_metadata(path: Path, **changes: object) -> None:
    graph = NgramGraph.load(path)
    NgramGraph(graph.trie, dataclasses.replace(graph.metadata, **changes)).save(path)  # type: ignore[arg-type]


def test_no_word_of_a_file_steers_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "steering\x1b[2J.pkl"
    named = Fingerprint("nowhere\x1b]0;title\x07/\x9b31m\u202e", "00" * 32, 200)
    build_from_token_ids([1, 2, 1, 3], named, max_order=2).save(path)
    files = (CorpusFile("a\x1b[31m.txt", 3, "00" * 32),)
    with_metadata(path, built_at="now\x1b[31m\r\nverified", library_version="1\x08", corpus_files=files)
    for command in (
        ["inspect", str(path), "--prompt", "x"],
        ["inspect", str(path), "--json"],
        ["prune", str(path), "-o", str(tmp_path / "p\x1b[2J.pkl"), "--json"],
    ):
        main(command)
        shown = "".join(capsys.readouterr())
        assert shown
        assert all(character == "\n" or character.isprintable() for character in shown), shown
    main(["inspect", str(path)])
    shown = capsys.readouterr().out
    assert r"built        now\x1b[31m\r\nverified by speculant-graph 1\x08 in" in shown
    assert r"tokenizer    nowhere\x1b]0;title\x07/\x9b31m\u202e (200 ids" in shown
