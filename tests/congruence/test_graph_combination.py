"""Graphs built from parts, or merged from graphs, a few records at a time, equal the oracle and a build in one go."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from speculant_graph.corpus.stream import DOCUMENT_SEPARATOR
from speculant_graph.draft.generator import DraftGenerator
from speculant_graph.errors import GraphError, GraphFileError, TokenizerMismatchError
from speculant_graph.files import workspace
from speculant_graph.graph.build import assemble, count, keys
from speculant_graph.graph.build.builder import build_from_token_ids
from speculant_graph.graph.build.combine import merge_graphs, prune_graph, update_graph
from speculant_graph.graph.layout import Trie
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.graph.store import check_graph
from support.graphs import assert_same_arrays, counts_of, fingerprint, graph_in_parts, graph_of
from support.oracle import OracleGraph

VOCABULARY_SIZES = (1, 2, 3, 4, 7, 8, 15, 700, 1 << 12, (1 << 16) - 1, 1 << 16, 1 << 20, (1 << 21) - 1)
Corpus = list[list[int]]


def one_stream(documents: Corpus) -> Corpus:
    return [list(itertools.chain(*documents))]


def check(graph: NgramGraph, documents: Corpus, min_count: int = 1) -> None:
    """Compare everything in a graph with the oracle."""
    slow = OracleGraph(documents, graph.max_order, min_count)
    assert counts_of(graph) == slow.ngram_counts
    assert sum(graph.metadata.contexts_per_order) == len(slow.context_index)
    for document in documents:
        draft = DraftGenerator(graph).draft(document[:12], 12, "greedy")
        assert list(draft.token_ids) == slow.draft(document[:12], 12, "greedy")[0]
    for length in range(2, graph.max_order + 2):
        shorter = {tuple(ngram): number for number, ngram in enumerate(graph.ngrams(length - 1).tolist())}
        links = graph.trie.level(length)[:-1, -1].tolist()
        assert links == [shorter[tuple(ngram[1:])] for ngram in graph.ngrams(length).tolist()]


@pytest.mark.parametrize("seed", range(40))
def test_small_portions(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(seed)

    def one_of(*values: int) -> int:
        return int(random.choice(values))

    monkeypatch.setattr(keys, "_RECORDS", one_of(1, 2, 3, 7))
    monkeypatch.setattr(keys, "_KEYS_AT_A_TIME", one_of(1, 2, 3, 5))
    monkeypatch.setattr(assemble, "_RECORDS_AT_A_TIME", one_of(1, 2, 5))
    monkeypatch.setattr(assemble, "_SLICE", one_of(1, 2, 3))
    monkeypatch.setattr(count, "_MIN_KEYS", one_of(1, 2, 3, 10, 60))
    max_order, vocabulary_size = seed % 10 + 1, VOCABULARY_SIZES[seed % len(VOCABULARY_SIZES)]
    pool = np.unique(np.array([0, 1, 2, vocabulary_size - 1, vocabulary_size - 2]).clip(0, vocabulary_size - 1))

    def corpus() -> Corpus:
        return [random.choice(pool, one_of(1, 1, 2, 3, 10, 60)).tolist() for _ in range(one_of(1, 2, 4))]

    first, second = corpus(), corpus()
    # Separators at every position: first, last, several in a row.
    stream = [
        token
        for document in first
        for token in [DOCUMENT_SEPARATOR] * one_of(0, 1, 2) + document + [DOCUMENT_SEPARATOR] * one_of(1, 2)
    ]
    in_parts, _ = graph_in_parts(stream, max_order, vocabulary_size, one_of(1, 2, 5, 17))
    check(in_parts, first)
    at_once, num_parts = graph_in_parts(stream, max_order, vocabulary_size, 1 << 16)
    assert num_parts == 1
    assert_same_arrays(in_parts, at_once)
    in_blocks, _ = graph_in_parts(stream, max_order, vocabulary_size, one_of(1, 2, 5, 17), one_of(1, 2, 5, 17))
    assert_same_arrays(in_blocks, at_once)
    boundaries = bool(seed % 2)
    documents = first + second if boundaries else one_stream(first + second)
    whole = build_from_token_ids(
        one_stream(first + second)[0],
        fingerprint(vocabulary_size),
        max_order=max_order,
        documents=first + second if boundaries else None,
        jobs=one_of(1, 2, 5),
    )
    check_graph(whole.trie, whole.metadata)
    check(whole, documents)
    halves = [graph_of(half, max_order, vocabulary_size, boundaries=boundaries) for half in (first, second)]
    merged = merge_graphs(*halves, tmp_path / "merged", jobs=2)
    assert_same_arrays(merged, whole)
    assert_same_arrays(
        merge_graphs(merged, halves[0], tmp_path / "left"),
        merge_graphs(halves[0], merge_graphs(halves[1], halves[0], tmp_path / "right"), tmp_path / "all"),
    )
    if int(whole.counts(1).max()) >= 3:
        pruned = prune_graph(merged, 3, tmp_path / "pruned", jobs=2)
        check_graph(pruned.trie, pruned.metadata)
        check(pruned, documents, 3)
        assert pruned.metadata.min_count == 3
        assert dict(pruned.context_index) == {
            each: len(each) for each in OracleGraph(documents, max_order, 3).context_index
        }
        assert_same_arrays(prune_graph(prune_graph(merged, 2, tmp_path / "once"), 3, tmp_path / "twice"), pruned)


@pytest.mark.parametrize(("document", "boundaries"), [([0], False), ([1, 2, 3], True)])
def test_a_corpus_of_one_ngram_again_and_again(document: list[int], boundaries: bool) -> None:
    documents = [document] * 70_000
    graph = graph_of(documents, 5, 4, boundaries=boundaries)
    assert graph.count(document) == 70_000
    assert graph.count(document * 2) == (0 if boundaries else 69_999)


def test_what_does_not_go_together_is_refused(tmp_path: Path) -> None:
    graph = graph_of([[1, 2, 3, 1, 2]], 2, 10)

    def with_other(**metadata: Any) -> NgramGraph:
        return NgramGraph(graph.trie, dataclasses.replace(graph.metadata, **metadata))

    other_tokenizer = with_other(tokenizer=dataclasses.replace(graph.metadata.tokenizer, sha256="11" * 32))
    refusals = [
        (with_other(special_tokens="parse"), GraphError, "only one of the graphs has parsed special tokens; build"),
        (other_tokenizer, TokenizerMismatchError, "different tokenizers"),
        (graph_of([[1, 2]], 3, 10), GraphError, "orders up to 2 and 3"),
        (graph_of([[1, 2]], 2, 10, boundaries=True), GraphError, "document boundaries"),
        (prune_graph(graph, 2, tmp_path / "pruned"), GraphError, "combine first, prune afterwards"),
        (with_other(num_tokens=2**32 - 4), GraphError, "tokens together"),
    ]
    for other, error, message in refusals:
        # A promise: each refusal says which property of the graphs differs.
        with pytest.raises(error, match=message):
            merge_graphs(graph, other, tmp_path / "graph.pkl")
    with pytest.raises(GraphError):
        merge_graphs(NgramGraph.load(tmp_path / "pruned"), graph, tmp_path / "graph.pkl")
    often = graph_of([[1, 2] * 9], 2, 10)
    with pytest.raises(GraphError):
        prune_graph(prune_graph(often, 4, tmp_path / "pruned"), 3, tmp_path / "graph.pkl")
    with pytest.raises(GraphError):
        prune_graph(graph, 3, tmp_path / "graph.pkl")
    with pytest.raises(GraphError):
        prune_graph(graph, 1, tmp_path / "graph.pkl")
    with pytest.raises(GraphFileError):
        prune_graph(graph, 2, tmp_path / "none" / "graph.pkl")
    assert [path.name for path in tmp_path.iterdir()] == ["pruned"]


@pytest.mark.hostile
def test_damaged_graphs_are_not_made_into_others(tmp_path: Path) -> None:
    graph = graph_of([[1, 2, 3, 1, 2, 4] * 20], 3, 10)
    random = np.random.default_rng(0)
    begin = int(graph.trie.table[0, 0])
    num_missed = 0
    for _ in range(200):
        words = graph.trie.words.copy()
        places = random.integers(begin, words.size, 3)
        words[places] ^= np.uint32(1) << random.integers(0, 32, 3).astype(np.uint32)
        words.flags.writeable = False
        damaged = NgramGraph(Trie(words, graph.trie.table), graph.metadata)
        with contextlib.suppress(GraphFileError):
            merge_graphs(graph, damaged, tmp_path / "a")
            num_missed += 1
        with contextlib.suppress(GraphFileError):
            prune_graph(damaged, 2, tmp_path / "b")
            num_missed += 1
        (tmp_path / "a").unlink(missing_ok=True)
        (tmp_path / "b").unlink(missing_ok=True)
    assert num_missed < 20, "those that hit the room between two arrays"


@pytest.mark.parametrize("name", ["head_token_ids", "tail_token_ids"])
def test_a_seam_that_is_not_in_the_text_is_refused(tmp_path: Path, name: str) -> None:
    graph = graph_of([[1, 2, 3, 1, 2]], 2, 10)
    lying = NgramGraph(graph.trie, dataclasses.replace(graph.metadata, **{name: (3, 3)}))
    with pytest.raises(GraphFileError):
        merge_graphs(lying, lying, tmp_path / "graph.pkl")
    assert not list(tmp_path.iterdir())


def test_two_updates_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "graph.pkl"
    graph_of([[1, 2, 3]], 2, 10).save(path)
    with workspace(path), pytest.raises(GraphFileError):
        update_graph(path, tmp_path)
