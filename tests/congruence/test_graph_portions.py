"""Everything that works in portions, with portions of a few records, against the oracle."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

import numpy as np
import pytest

from speculant_graph.corpus.stream import DOCUMENT_SEPARATOR
from speculant_graph.graph.build import assemble, count, emit, finish, streams
from speculant_graph.graph.build.builder import build_from_token_ids
from speculant_graph.graph.build.combine import merge_graphs, prune_graph
from speculant_graph.graph.check import check_graph
from speculant_graph.graph.ngrams import NgramGraph
from support.graphs import assert_same_arrays, counts_of, fingerprint, graph_in_parts, graph_of
from support.oracle import OracleGraph

VOCABULARY_SIZES = (1, 2, 3, 4, 7, 8, 15, 700, 1 << 12, (1 << 16) - 1, 1 << 16, 1 << 20, (1 << 21) - 1)
Corpus = list[list[int]]


def one_stream(documents: Corpus) -> Corpus:
    return [list(itertools.chain(*documents))]


def check(graph: NgramGraph, documents: Corpus, min_count: int = 1) -> None:
    """Hold all that a graph is made of against the oracle."""
    slow = OracleGraph(documents, graph.max_order, min_count)
    assert counts_of(graph) == slow.ngram_counts
    assert sum(graph.metadata.contexts_per_order) == len(slow.context_index)
    for document in documents:
        assert graph.draft_greedy(document[:12], 12) == slow.draft(document[:12], 12, "greedy")[0]
    for length in range(2, graph.max_order + 2):
        shorter = {tuple(ngram): number for number, ngram in enumerate(graph.ngrams(length - 1).tolist())}
        links = graph.trie.level(length)[:-1, -1].tolist()
        assert links == [shorter[tuple(ngram[1:])] for ngram in graph.ngrams(length).tolist()]


@pytest.mark.parametrize("seed", range(60))
def test_small_portions(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(seed)

    def one_of(*values: int) -> int:
        return int(random.choice(values))

    monkeypatch.setattr(emit, "_RECORDS", one_of(1, 2, 3, 7))
    monkeypatch.setattr(streams, "_KEYS_AT_A_TIME", one_of(1, 2, 3, 5))
    monkeypatch.setattr(assemble, "_RECORDS_AT_A_TIME", one_of(1, 2, 5))
    monkeypatch.setattr(finish, "_SLICE", one_of(1, 2, 3))
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
    with tempfile.TemporaryDirectory() as folder:
        merged = merge_graphs(*halves, Path(folder) / "merged", jobs=2)
        assert_same_arrays(merged, whole)
        min_count = one_of(2, 3)
        if int(whole.counts(1).max()) >= min_count:
            pruned = prune_graph(merged, min_count, Path(folder) / "pruned", jobs=2)
            check_graph(pruned.trie, pruned.metadata)
            check(pruned, documents, min_count)


@pytest.mark.parametrize(("document", "boundaries"), [([0], False), ([1, 2, 3], True)])
def test_a_corpus_of_one_ngram_again_and_again(document: list[int], boundaries: bool) -> None:
    documents = [document] * 70_000
    graph = graph_of(documents, 5, 4, boundaries=boundaries)
    assert graph.count(document) == 70_000
    assert graph.count(document * 2) == (0 if boundaries else 69_999)
