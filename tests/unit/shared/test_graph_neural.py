"""Neural models in graph files: training in a build, copying, further training, and damaged files."""

from __future__ import annotations

import io
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from speculant_graph import _core
from speculant_graph.cli.main import main
from speculant_graph.config import DraftConfig
from speculant_graph.draft.learning.learned_store import load_calibration
from speculant_graph.draft.session_drafter import DraftRequest, SessionDrafter
from speculant_graph.errors import ConfigError
from speculant_graph.graph.build.builder import BuildProgress, GraphBuilder
from speculant_graph.graph.build.combine import merge_graphs, prune_graph, update_graph
from speculant_graph.graph.layout import Trie
from speculant_graph.graph.ngrams import NgramGraph
from support.damage import assert_refused, damaged, rewrite
from support.graphs import assert_same_arrays, graph_of, with_model
from support.neural_reference import arrays_of, random_words

VOCABULARY_SIZE = 40


def stream(seed: int, size: int = 300) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCABULARY_SIZE, size).tolist()


@pytest.fixture
def graph() -> NgramGraph:
    words = random_words(np.random.default_rng(0), [*range(0, VOCABULARY_SIZE, 2)], VOCABULARY_SIZE)
    return with_model(graph_of([stream(0)], 3, VOCABULARY_SIZE), words)


@pytest.fixture
def path(graph: NgramGraph, tmp_path: Path) -> Path:
    graph.save(tmp_path / "graph.pkl")
    return tmp_path / "graph.pkl"


def drafts_of(graph: NgramGraph) -> list[Any]:
    """Draft from a graph, possibly damaged, with its neural model."""
    drafter = SessionDrafter(graph, DraftConfig(strategy="tree"))
    drafts = []
    for number in range(3):
        drafter.open(number)
        drafter.accept(number, stream(number + 1, 100))
        for token_id in stream(number + 9, 10):
            drafts += drafter.draft([DraftRequest(number, 40)])
            drafter.accept(number, [token_id])
    assert all(0 <= token_id < 2**21 for draft in drafts for token_id in draft.token_ids)
    return drafts


def test_a_file_holds_the_model(graph: NgramGraph, path: Path) -> None:
    loaded = NgramGraph.load(path, complete=True)
    assert loaded.metadata == graph.metadata
    assert_same_arrays(loaded, graph)
    for same in (loaded, pickle.loads(path.read_bytes()), pickle.loads(pickle.dumps(graph, 2))):
        np.testing.assert_array_equal(same.trie.model, graph.trie.model)
        assert drafts_of(same) == drafts_of(graph)
    assert drafts_of(graph) != drafts_of(graph_of([stream(0)], 3, VOCABULARY_SIZE))


def test_files_of_the_release_before_are_read(tmp_path: Path) -> None:
    path = tmp_path / "graph.pkl"
    graph = graph_of([stream(0)], 3, VOCABULARY_SIZE)
    graph.save(path)

    def age(description: dict[str, Any], _: Trie) -> None:
        description["format_version"] = 3
        del description["num_model_words"]

    rewrite(path, age)
    old = NgramGraph.load(path, complete=True)
    np.testing.assert_array_equal(old.trie.words, graph.trie.words)
    assert old.trie.model is None
    old.save(path)
    assert NgramGraph.load(path).metadata == graph.metadata


def test_calibrations_of_the_release_before_are_widened() -> None:
    """Older tables lack the rows for neural contexts; both kinds of these rows come last."""
    new = _core.Calibration()
    weights, bins = new.weights[:990] + 1.0, np.ones((20, 4_096, 3))
    buffer = io.BytesIO()
    np.savez_compressed(buffer, format=1, escapes=weights, agreements=bins.reshape(-1, 3))
    loaded = load_calibration(buffer.getvalue())
    np.testing.assert_array_equal(loaded.weights, [*weights, *new.weights[990:]])
    assert loaded.bins.reshape(20, 4, 4_096, 3)[:, 0].min() == 1.0
    assert not loaded.bins.reshape(20, 4, 4_096, 3)[:, 1:].any()


@pytest.mark.parametrize(("word", "value"), [(0, 2), (1, VOCABULARY_SIZE - 1), (2, 65_536), (2, 0), (2, 50), (5, 99)])
def test_words_that_can_be_no_model_are_refused(path: Path, word: int, value: int) -> None:
    def change(_: dict[str, Any], trie: Trie) -> None:
        assert trie.model is not None
        trie.model[word] = value

    rewrite(path, change)
    assert_refused(path)


@pytest.mark.parametrize("change", [-1, 1, 2**40])
def test_a_description_that_says_another_size_is_refused(path: Path, graph: NgramGraph, change: int) -> None:
    size = graph.trie.num_model_words + change
    rewrite(path, lambda description, _: description.update(num_model_words=size))
    assert_refused(path)


@pytest.mark.hostile
def test_no_damage_leads_a_model_out_of_its_tables(graph: NgramGraph) -> None:
    chance = np.random.default_rng(1)
    for _ in range(30):
        assert graph.trie.model is not None
        words = graph.trie.model.copy()
        for name, array in arrays_of(words).items():
            if chance.random() < 0.3:
                limits = np.iinfo(array.dtype)
                array[:] = chance.choice([limits.min, limits.max, 0, 1, 20, 21], array.shape)
                assert name
        drafts_of(with_model(graph_of([stream(0)], 3, VOCABULARY_SIZE), words))
        whole = damaged(graph, chance)
        drafts_of(whole)


def test_a_graph_without_a_model_has_no_such_source(graph: NgramGraph) -> None:
    config = DraftConfig(sources=frozenset({"neural"}))
    SessionDrafter(graph, config)
    for without in (None, graph_of([stream(0)], 3, VOCABULARY_SIZE)):
        with pytest.raises(ConfigError):
            SessionDrafter(without, config)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    words = [*"abcdefgh", "parties", "agreement", "terms"]
    chance = np.random.default_rng(0)
    text = "\n".join(" ".join(chance.choice(words, 9)) for _ in range(700))
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    return tmp_path / "text.txt"


def test_a_build_trains_a_model(
    corpus: Path, tmp_path: Path, plain_tokenizer_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output, seen = tmp_path / "graph.pkl", list[BuildProgress]()
    builder = GraphBuilder(plain_tokenizer_folder)
    built = builder.build(corpus, output, progress=seen.append)
    assert builder.report is not None
    assert builder.report.train_s > 0
    assert {progress.done == progress.total for progress in seen if progress.phase == "train"} == {False, True}
    assert built.trie.model is not None
    again = builder.build(corpus, tmp_path / "again.pkl")
    np.testing.assert_array_equal(again.trie.model, built.trie.model)
    assert again.metadata.calibration == built.metadata.calibration
    kinds = load_calibration(built.metadata.calibration).weights[990:]
    assert not np.array_equal(kinds, _core.Calibration().weights[990:]), "the calibration knows how good it is"
    whole = builder.build(corpus, tmp_path / "again.pkl", calibrate=False)
    assert not np.array_equal(whole.trie.model, built.trie.model), "what calibration is learned from was left out"

    arguments = ["build", str(corpus), "-o", str(output), "--tokenizer", str(plain_tokenizer_folder), "--no-neural"]
    assert main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["neural_model_bytes"] == 0
    assert NgramGraph.load(output).trie.model is None
    for graph_file, text in ((output, "none"), (tmp_path / "again.pkl", "MB")):
        assert main(["inspect", str(graph_file)]) == 0
        (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("neural model")]
        assert text in line


def test_graphs_from_graphs_keep_and_train_models(corpus: Path, tmp_path: Path, plain_tokenizer_folder: Path) -> None:
    builder = GraphBuilder(plain_tokenizer_folder, 3)
    large = builder.build(corpus, tmp_path / "large.pkl")
    (tmp_path / "small.txt").write_text("terms of the agreement " * 2_000, encoding="utf-8")
    small = builder.build(tmp_path / "small.txt", tmp_path / "small.pkl")
    assert large.metadata.num_tokens > small.metadata.num_tokens
    none = GraphBuilder(plain_tokenizer_folder, 3, neural=False).build(corpus, tmp_path / "none.pkl")
    output = tmp_path / "out.pkl"
    for first, second, kept in ((small, large, large), (large, small, large), (none, small, small)):
        np.testing.assert_array_equal(merge_graphs(first, second, output).trie.model, kept.trie.model)
    np.testing.assert_array_equal(prune_graph(large, 2, output).trie.model, large.trie.model)

    updated = update_graph(tmp_path / "large.pkl", tmp_path / "small.txt", output)
    assert updated.trie.model is not None
    assert large.trie.model is not None
    assert not np.array_equal(updated.trie.model, large.trie.model), "it was trained further"
    old, new = (arrays_of(graph.trie.model)["tokens"].tolist() for graph in (large, updated))
    assert new[: len(old)] == old
    assert update_graph(tmp_path / "none.pkl", tmp_path / "small.txt", output).trie.model is None
    (tmp_path / "tiny.txt").write_text("terms", encoding="utf-8")
    kept = update_graph(tmp_path / "large.pkl", tmp_path / "tiny.txt", output)
    np.testing.assert_array_equal(kept.trie.model, large.trie.model)


def test_training_that_is_interrupted_leaves_nothing(
    corpus: Path, tmp_path: Path, plain_tokenizer_folder: Path
) -> None:
    def interrupt(progress: BuildProgress) -> None:
        if progress.phase == "train":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        GraphBuilder(plain_tokenizer_folder).build(corpus, tmp_path / "graph.pkl", progress=interrupt)
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]


def test_small_corpora_have_no_model(tmp_path: Path, plain_tokenizer_folder: Path) -> None:
    (tmp_path / "text.txt").write_text("The parties agree. " * 20, encoding="utf-8")
    graph = GraphBuilder(plain_tokenizer_folder).build(tmp_path / "text.txt", tmp_path / "graph.pkl")
    assert graph.trie.model is None
