"""Graphs made of graphs have the arrays of a build of all their text."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speculant_graph.errors import GraphError, GraphFileError, TokenizerMismatchError
from speculant_graph.graph.build.combine import merge_graphs, prune_graph, update_graph
from speculant_graph.graph.layout import Trie
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.graph.workspace import only_writer
from support.graphs import assert_same_arrays, counts_of, graph_of
from support.oracle import OracleGraph

VOCABULARY_SIZE = 700

token = st.one_of(st.integers(0, 3), st.sampled_from([0, VOCABULARY_SIZE - 1]))
document = st.lists(token, min_size=1, max_size=30)
corpus = st.lists(document, min_size=1, max_size=3)
order = st.integers(1, 10)


def merged(first: NgramGraph, second: NgramGraph) -> NgramGraph:
    with tempfile.TemporaryDirectory() as folder:
        return merge_graphs(first, second, Path(folder) / "graph.pkl")


def pruned(graph: NgramGraph, min_count: int) -> NgramGraph:
    with tempfile.TemporaryDirectory() as folder:
        return prune_graph(graph, min_count, Path(folder) / "graph.pkl")


@settings(max_examples=50, deadline=None)
@given(first=corpus, second=corpus, third=corpus, max_order=order, boundaries=st.booleans())
def test_a_merged_graph_is_the_graph_of_both_texts(
    first: list[list[int]], second: list[list[int]], third: list[list[int]], max_order: int, boundaries: bool
) -> None:
    graphs = [graph_of(part, max_order, VOCABULARY_SIZE, boundaries=boundaries) for part in (first, second, third)]
    both = merged(graphs[0], graphs[1])
    assert_same_arrays(both, graph_of(first + second, max_order, VOCABULARY_SIZE, boundaries=boundaries))
    rebuilt = graph_of(first + second + third, max_order, VOCABULARY_SIZE, boundaries=boundaries)
    assert_same_arrays(merged(both, graphs[2]), rebuilt)
    assert_same_arrays(merged(graphs[0], merged(graphs[1], graphs[2])), rebuilt)


@settings(max_examples=150, deadline=None)
@given(documents=corpus, max_order=order, boundaries=st.booleans(), min_count=st.integers(2, 4), context=document)
def test_a_pruned_graph_keeps_what_is_frequent(
    documents: list[list[int]], max_order: int, boundaries: bool, min_count: int, context: list[int]
) -> None:
    whole = graph_of(documents, max_order, VOCABULARY_SIZE, boundaries=boundaries)
    slow = OracleGraph(documents if boundaries else [list(itertools.chain(*documents))], max_order, min_count)
    if not slow.ngram_counts:
        with pytest.raises(GraphError, match="prune to less"):
            pruned(whole, min_count)
        return
    graph = pruned(whole, min_count)
    assert counts_of(graph) == slow.ngram_counts
    assert dict(graph.context_index) == {context: len(context) for context in slow.context_index}
    assert graph.metadata.min_count == min_count
    assert sum(graph.metadata.contexts_per_order) == len(slow.context_index)
    assert graph.draft_greedy(context, 8) == slow.draft(context, 8, "greedy")[0]
    for known, successors in slow.context_index.items():
        assert graph.successors(known).total == successors.total()
        assert sum(graph.probability(known, successor) for successor in successors) == pytest.approx(1, abs=1e-6)
    if min_count == 3 and slow.ngram_counts:
        assert_same_arrays(pruned(pruned(whole, 2), 3), graph)


def test_a_graph_may_be_replaced_by_what_is_made_of_it(tmp_path: Path) -> None:
    path = tmp_path / "graph.pkl"
    graph_of([[1, 2, 3, 1, 2, 4]], 2, 10).save(path)
    graph = NgramGraph.load(path)
    result = merge_graphs(graph, graph, path)
    assert result.count([1, 2]) == 4
    assert result.count([4, 1]) == 1, "the seam"
    assert graph.count([1, 2]) == 2, "what is open stays what it was"
    assert NgramGraph.load(path, verify=True).count([1, 2]) == 4
    assert [file.name for file in tmp_path.iterdir()] == ["graph.pkl"]


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
        (pruned(graph, 2), GraphError, "combine first, prune afterwards"),
        (with_other(num_tokens=2**32 - 4), GraphError, "tokens together"),
    ]
    for other, error, message in refusals:
        with pytest.raises(error, match=message):
            merge_graphs(graph, other, tmp_path / "graph.pkl")
    with pytest.raises(GraphError, match="combine first, prune afterwards"):
        merge_graphs(pruned(graph, 2), graph, tmp_path / "graph.pkl")
    often = graph_of([[1, 2] * 9], 2, 10)
    with pytest.raises(GraphError, match="take at least 4"):
        prune_graph(pruned(often, 4), 3, tmp_path / "graph.pkl")
    with pytest.raises(GraphError, match="removes nothing"):
        prune_graph(graph, 1, tmp_path / "graph.pkl")
    with pytest.raises(GraphFileError, match="no folder"):
        prune_graph(graph, 2, tmp_path / "none" / "graph.pkl")
    assert not list(tmp_path.iterdir())


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
    with pytest.raises(GraphFileError, match="is damaged"):
        merge_graphs(lying, lying, tmp_path / "graph.pkl")
    assert not list(tmp_path.iterdir())


def test_two_updates_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "graph.pkl"
    graph_of([[1, 2, 3]], 2, 10).save(path)
    with only_writer(path), pytest.raises(GraphFileError, match="another command is updating"):
        update_graph(path, tmp_path)
    with only_writer(path):
        graph_of([[1, 2]], 2, 10).save(path)
