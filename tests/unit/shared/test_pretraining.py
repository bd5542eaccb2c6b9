"""The calibration that a build learns from held-out slices of its corpus, and its storage in the graph."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from speculant_graph._core import Calibration
from speculant_graph.cli.main import main
from speculant_graph.config import DraftConfig
from speculant_graph.corpus.stream import DOCUMENT_SEPARATOR
from speculant_graph.draft.learning.learned_store import load_calibration
from speculant_graph.draft.pretraining import KEPT_VISITS, pretrain
from speculant_graph.draft.session_drafter import SessionDrafter
from speculant_graph.errors import GraphFileError, SpeculantError
from speculant_graph.graph.build.builder import GraphBuilder, build_from_token_ids, describe_tokens
from speculant_graph.graph.build.combine import merge_graphs
from speculant_graph.graph.build.slices import MOST_COUNTED, MOST_HELD_OUT, MOST_PIECES, SMALLEST_CORPUS, divide
from speculant_graph.graph.layout import UInt32Array
from speculant_graph.graph.metadata import GraphMetadata
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.types import SequenceStep
from support.graphs import fingerprint, graph_of

VOCABULARY_SIZE = 60
MEMORY = 2_000_000_000


def sample_tokens(num_tokens: int, *, seed: int = 0, document: int = 0) -> UInt32Array:
    """Return random phrases, shape ``[num_tokens]``; with ``document``, in documents of fewer tokens than this."""
    random = np.random.default_rng(seed)
    phrases = [random.integers(0, VOCABULARY_SIZE, length) for length in random.integers(2, 9, 80)]
    tokens = np.concatenate([phrases[number] for number in random.zipf(1.3, num_tokens).clip(max=80) - 1])
    tokens = tokens[:num_tokens].astype(np.uint32)
    if document:
        positions = np.cumsum(random.integers(1, document, num_tokens))
        tokens[positions[positions < num_tokens - 1]] = DOCUMENT_SEPARATOR
    return tokens


def facts_of(tokens: UInt32Array) -> GraphMetadata:
    num_separators = int(np.count_nonzero(tokens == DOCUMENT_SEPARATOR))
    return describe_tokens(
        tokens,
        fingerprint(VOCABULARY_SIZE),
        max_order=4,
        num_documents=num_separators + 1,
        document_boundaries=num_separators > 0,
    )


def pretrained(folder: Path, tokens: UInt32Array, *, memory: int = MEMORY, jobs: int = 1) -> bytes:
    tokens.tofile(folder / "tokens")
    calibration = pretrain(folder / "tokens", facts_of(tokens), memory, jobs)
    assert [path.name for path in folder.iterdir()] == ["tokens"], "nothing is left behind"
    return calibration


def documents_of(tokens: Sequence[int]) -> list[list[int]]:
    """Split at separators, with a plain loop."""
    documents: list[list[int]] = [[]]
    for token_id in tokens:
        if token_id == DOCUMENT_SEPARATOR:
            documents.append([])
        else:
            documents[-1].append(token_id)
    return documents


def pretrained_slowly(tokens: UInt32Array) -> Calibration:
    slices = divide(tokens.size)
    counted = [document for part in slices.counted for document in documents_of(tokens[part].tolist())]
    graph = build_from_token_ids([], fingerprint(VOCABULARY_SIZE), max_order=4, documents=counted)
    calibration = Calibration()
    config = DraftConfig(strategy="tree", sources=frozenset({"corpus", "session"}))
    drafter = SessionDrafter(graph, config, calibration=calibration)
    pieces = [document for part in slices.held_out for document in documents_of(tokens[part].tolist())]
    for number, piece in enumerate(pieces, start=1):
        if len(piece) < 4:
            continue
        drafter.open(number)
        drafter.accept(number, piece[: len(piece) // 4])
        rest = piece[len(piece) // 4 :]
        while rest:
            draft = drafter.draft([SequenceStep(number, (), 8)])[0]
            nodes = list(zip(draft.parents, draft.token_ids, strict=True))
            node, num_accepted = 0, 0
            while num_accepted < len(rest) and (node, rest[num_accepted]) in nodes:
                node = nodes.index((node, rest[num_accepted])) + 1
                num_accepted += 1
            drafter.accept(number, rest[: num_accepted + 1])
            rest = rest[num_accepted + 1 :]
        drafter.close(number)
    tables = calibration.weights, calibration.bins
    for table in tables:
        for row in table:
            if row[0] > KEPT_VISITS:
                row *= KEPT_VISITS / row[0]
    calibration.restore(*tables)
    return calibration


@given(st.integers(SMALLEST_CORPUS, 1 << 32))
@example(SMALLEST_CORPUS)
@example(1_000_000)
@example(10_000_000)
def test_what_is_counted_and_what_is_held_out_are_disjoint_and_spread_evenly(num_tokens: int) -> None:
    slices = divide(num_tokens)
    assert len(slices.counted) == len(slices.held_out) <= MOST_PIECES
    in_order = list(itertools.chain(*zip(slices.counted, slices.held_out, strict=True)))
    borders = [0, *(border for part in in_order for border in (part.start, part.stop)), num_tokens]
    assert borders == sorted(borders), "in order, none overlap, none outside"
    sizes = [part.stop - part.start for part in slices.held_out]
    assert len(set(sizes)) == 1
    assert min(sizes) >= 500
    assert sum(sizes) <= min(MOST_HELD_OUT, num_tokens // 10)
    assert sum(sizes) >= min(MOST_HELD_OUT, num_tokens // 50) - len(sizes)
    counted = sum(part.stop - part.start for part in slices.counted)
    assert min(part.stop - part.start for part in slices.counted) > 0
    assert counted <= MOST_COUNTED
    if num_tokens <= MOST_COUNTED:
        assert counted + sum(sizes) == num_tokens, "nothing is left out that fits"
    for number, piece in enumerate(slices.held_out):
        assert number * num_tokens // len(sizes) <= piece.start < (number + 1) * num_tokens // len(sizes)


@pytest.mark.parametrize("document", [0, 7, 400, 6_000])
def test_the_tables_are_those_of_the_slow_way(tmp_path: Path, document: int) -> None:
    tokens = sample_tokens(12_000, document=document)
    tokens[divide(tokens.size).counted[1].start] = DOCUMENT_SEPARATOR if document else 1  # at the border of a slice
    learned, expected = load_calibration(pretrained(tmp_path, tokens)), pretrained_slowly(tokens)
    for name in ("weights", "bins"):
        table, slow, untaught = (getattr(each, name) for each in (learned, expected, Calibration()))
        np.testing.assert_array_equal(table, slow)
        assert (table != untaught).any()
        assert table[:, 0].max() == pytest.approx(KEPT_VISITS)


def test_small_corpora_teach_nothing(tmp_path: Path) -> None:
    assert pretrained(tmp_path, sample_tokens(SMALLEST_CORPUS - 1)) == b""
    assert pretrained(tmp_path, sample_tokens(SMALLEST_CORPUS)) != b""
    documents = np.full(4 * SMALLEST_CORPUS, 1, np.uint32)
    documents[: 3 * SMALLEST_CORPUS + 1] = DOCUMENT_SEPARATOR
    assert pretrained(tmp_path, documents[: 4 * SMALLEST_CORPUS]) == b"", "separators are no tokens"


def calibrated(graph: NgramGraph, path: Path, calibration: bytes) -> NgramGraph:
    """Save a graph with a calibration and open it again."""
    NgramGraph(graph.trie, dataclasses.replace(graph.metadata, calibration=calibration)).save(path)
    return NgramGraph.load(path, verify=True)


@pytest.fixture
def graphs(tmp_path: Path) -> tuple[NgramGraph, NgramGraph]:
    """A small graph and a larger one, with calibrations."""
    small, large = (graph_of([sample_tokens(size, seed=size).tolist()], 3, VOCABULARY_SIZE) for size in (300, 500))
    return calibrated(small, tmp_path / "small", b"\x00small\xff"), calibrated(large, tmp_path / "large", b"large")


def test_a_merge_keeps_the_calibration_of_the_larger_corpus(
    graphs: tuple[NgramGraph, NgramGraph], tmp_path: Path
) -> None:
    small, large = graphs
    output = tmp_path / "both"
    assert merge_graphs(small, large, output).metadata.calibration == b"large"
    assert merge_graphs(large, small, output).metadata.calibration == b"large"
    without = calibrated(large, tmp_path / "without", b"")
    assert merge_graphs(small, without, output).metadata.calibration == b"\x00small\xff", "rather that than none"


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    words = [*"abcdefgh", "parties", "agreement", "terms"]
    random = np.random.default_rng(0)
    text = "\n".join(" ".join(random.choice(words, 9)) for _ in range(500))
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    return tmp_path / "text.txt"


def test_a_build_calibrates(
    corpus: Path, tmp_path: Path, tokenizer_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def built(*more: object) -> tuple[NgramGraph, int]:
        output = tmp_path / "graph.pkl"
        arguments = ("build", corpus, "-o", output, "--tokenizer", tokenizer_folder, "--json", *more)
        assert main([str(argument) for argument in arguments]) == 0
        return NgramGraph.load(output), json.loads(capsys.readouterr().out.splitlines()[-1])["calibration_bytes"]

    graph, num_bytes = built()
    assert num_bytes == len(graph.metadata.calibration) > 0
    load_calibration(graph.metadata.calibration)
    assert main(["inspect", str(tmp_path / "graph.pkl"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["calibration_bytes"] == num_bytes


def test_a_build_in_python_calibrates_as_the_command_does(
    corpus: Path, tmp_path: Path, plain_tokenizer_folder: Path
) -> None:
    output, tokenizer = tmp_path / "graph.pkl", str(plain_tokenizer_folder)
    assert main(["build", str(corpus), "-o", str(output), "--tokenizer", tokenizer]) == 0
    expected = NgramGraph.load(output).metadata.calibration
    assert expected
    builder = GraphBuilder(tokenizer)
    assert builder.build(corpus, output).metadata.calibration == expected
    assert builder.build_from_files(corpus).metadata.calibration == expected
    assert not builder.build(corpus, output, calibrate=False).metadata.calibration


@pytest.mark.parametrize("name", ["tokenizer", "empty", "field", "ids", "binary"])
def test_errors_of_a_build_in_python_name_no_flags(tmp_path: Path, plain_tokenizer_folder: Path, name: str) -> None:
    tokenizer = tmp_path if name == "tokenizer" else plain_tokenizer_folder
    file = tmp_path / {"field": "a.jsonl", "ids": "b.jsonl"}.get(name, "c.txt")
    file.write_text({"field": '{"a": 1}', "ids": '{"text": [999999]}', "binary": "\0"}.get(name, ""), "utf-8")
    with pytest.raises(SpeculantError) as caught:
        GraphBuilder(tokenizer).build(file, tmp_path / "graph.pkl")
    assert "--" not in str(caught.value)


def test_a_failing_calibration_leaves_the_old_graph(corpus: Path, tmp_path: Path, plain_tokenizer_folder: Path) -> None:
    builder = GraphBuilder(plain_tokenizer_folder, 3)
    builder.build(corpus, tmp_path / "graph.pkl")
    before = (tmp_path / "graph.pkl").read_bytes()
    with pytest.raises(GraphFileError):
        builder.build(corpus, tmp_path / "graph.pkl", calibrate=lambda *_: bytes(2_000_000))

    def interrupted(*_: object) -> bytes:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        builder.build(corpus, tmp_path / "graph.pkl", calibrate=interrupted)
    assert (tmp_path / "graph.pkl").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["graph.pkl", "text.txt"]
