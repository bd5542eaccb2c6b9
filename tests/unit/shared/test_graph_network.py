"""The graph as a networkx graph: the view, copies of it, and exported files."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculant_graph.corpus.tokenize import CorpusTokenizer
from speculant_graph.graph.build.builder import build_from_token_ids
from speculant_graph.graph.network import NgramDiGraph
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.log import log_to_stderr
from support.graphs import graph_of
from support.oracle import OracleGraph

VOCABULARY_SIZE = 50

streams = st.lists(st.one_of(st.integers(0, 4), st.just(VOCABULARY_SIZE - 1)), min_size=1, max_size=60)
orders = st.integers(1, 4)


def spell(token_ids: Any) -> str:
    return "".join(f"<{token_id}>" for token_id in token_ids)


def graph(token_ids: list[int], max_order: int = 3) -> NgramGraph:
    return graph_of([token_ids], max_order, VOCABULARY_SIZE)


def obvious(token_ids: list[int], max_order: int) -> nx.DiGraph:
    """Build the graph of the requirements from dictionaries."""
    slow = OracleGraph([token_ids], max_order)
    made: nx.DiGraph = nx.DiGraph()
    for token_id in set(token_ids):
        made.add_node(token_id, token_id=token_id, text=f"<{token_id}>", count=token_ids.count(token_id))
    for context, successors in slow.context_index.items():
        for token_id, count in successors.items():
            made.add_edge(context, token_id, weight=count / successors.total(), count=count, order=len(context))
    return made


@pytest.fixture
def small() -> nx.DiGraph:
    return graph([1, 2, 3, 1, 2, 4, 1, 2, 4, 5, 3, 3]).nx


@given(token_ids=streams, max_order=orders)
def test_view_is_the_obvious_graph(token_ids: list[int], max_order: int) -> None:
    view, expected = NgramDiGraph(graph(token_ids, max_order), spell), obvious(token_ids, max_order)
    assert view.adj == expected.adj
    assert view.nodes == expected.nodes
    assert dict(view.nodes(data=True)) == dict(expected.nodes(data=True))
    edges = {(u, v): data for u, v, data in expected.edges(data=True)}
    assert {(u, v): data for u, v, data in view.edges(data=True)} == edges
    assert {(u, v): data for u, v, data in view.in_edges(data=True)} == edges
    assert {n: dict(view.pred[n]) for n in view} == {n: dict(expected.pred[n]) for n in expected}
    assert {n: dict(row) for n, row in view._pred.items()} == {n: dict(expected.pred[n]) for n in expected}
    assert list(view) == sorted(set(token_ids)) + sorted(
        (node for node in expected if isinstance(node, tuple)), key=lambda context: (len(context), context)
    )
    for u, v in edges:
        assert view.edges[u, v] == edges[u, v]
        assert view.has_edge(u, v)
        assert view.number_of_edges(u, v) == 1
        assert not view.has_edge(v, u)
    assert (len(view), view.number_of_nodes()) == (len(expected), len(expected))
    assert view.number_of_edges() == view.size() == len(view.edges) == expected.number_of_edges()
    for attribute in ("weight", "none such"):
        assert view.size(attribute) == pytest.approx(expected.size(attribute))
    for degrees in ("in_degree", "out_degree", "degree"):
        assert dict(getattr(view, degrees)()) == dict(getattr(expected, degrees)())
    assert dict(view.degree(weight="count")) == dict(expected.degree(weight="count"))
    assert str(view) == str(expected).replace("DiGraph", "NgramDiGraph")


@given(token_ids=streams, max_order=orders, data=st.data())
def test_copies_parts_and_reversals_are_ordinary(token_ids: list[int], max_order: int, data: st.DataObject) -> None:
    view, expected = NgramDiGraph(graph(token_ids, max_order), spell), obvious(token_ids, max_order)
    expected.graph.update(view.graph)
    some = data.draw(st.lists(st.sampled_from(list(expected)), unique=True))
    for made, original in (
        (view.copy(), expected),
        (nx.DiGraph(view), expected),
        (type(view)(view), expected),
        (view.reverse(copy=True), expected.reverse(copy=True)),
        (view.reverse(copy=False), expected.reverse(copy=False)),
        (view.subgraph(some), expected.subgraph(some)),
        (view.subgraph(some).copy(), expected.subgraph(some).copy()),
        (view.edge_subgraph(list(view.edges)[:3]), expected.edge_subgraph(list(view.edges)[:3])),
        (view.to_undirected(), expected.to_undirected()),
        (view.to_directed(), expected.to_directed()),
        (view.copy(as_view=True), expected),
        (nx.relabel_nodes(view, str), nx.relabel_nodes(expected, str)),
    ):
        assert not isinstance(made, NgramDiGraph)
        assert nx.utils.graphs_equal(made, original)
        assert pickle.loads(pickle.dumps(dict(made.nodes(data=True)))) == dict(original.nodes(data=True))
    changed = nx.DiGraph(view)
    changed.add_edge("new", token_ids[0], weight=1.0)
    changed.nodes[token_ids[0]]["text"] = "changed"
    assert "new" not in view
    assert view.nodes[token_ids[0]]["text"] == f"<{token_ids[0]}>"


@pytest.mark.parametrize("node", [9, -1, 2**40, "1", None, (), (9,), (1, "2"), (1, 2, 4, 5), (1, (2,)), [1]])
def test_what_is_no_node(small: nx.DiGraph, node: Any) -> None:
    assert node not in small
    assert not small.has_edge(node, 1)
    assert not small.has_edge((1,), node)
    with pytest.raises(KeyError):
        small.nodes[node]
    for neighbours in (small.successors, small.predecessors):
        with pytest.raises(nx.NetworkXError):
            neighbours(node)


@pytest.mark.parametrize(
    "change",
    [
        lambda view: view.add_node(9),
        lambda view: view.remove_edge((1,), 2),
        lambda view: nx.add_path(view, [1, 2]),
    ],
)
def test_changes_are_refused(small: nx.DiGraph, change: Callable[[nx.DiGraph], object]) -> None:
    before = nx.DiGraph(small)
    with pytest.raises(nx.NetworkXError):
        change(small)
    assert nx.is_frozen(small)
    assert nx.utils.graphs_equal(small, before)


def test_copies_and_pickles_are_views_of_the_same_graph(small: nx.DiGraph) -> None:
    for another in (pickle.loads(pickle.dumps(small)), copy.deepcopy(small), copy.copy(small)):
        assert nx.is_frozen(another)
        assert nx.utils.graphs_equal(another, small)


@pytest.fixture
def spelt(tokenizer_folder: Path) -> NgramGraph:
    """A graph whose tokenizer is available."""
    tokenizer = CorpusTokenizer.load(tokenizer_folder)
    token_ids = tokenizer.encode("the parties agree that the parties agree")
    return build_from_token_ids(token_ids, tokenizer.fingerprint, max_order=2)


def test_tokens_have_the_text_of_the_graphs_own_tokenizer(spelt: NgramGraph, tokenizer_folder: Path) -> None:
    tokenizer = CorpusTokenizer.load(tokenizer_folder)
    for token_id in spelt.ngrams(1)[:, 0].tolist():
        data = spelt.nx.nodes[token_id]
        assert data["text"] == data.get("text") == dict(data)["text"] == tokenizer.decode([token_id]) != ""
        assert data == data.copy() == {"token_id": token_id, "text": data["text"], "count": data["count"]}


@pytest.mark.parametrize("name", ["nowhere", "other"])
def test_without_the_tokenizer_there_is_no_text(
    spelt: NgramGraph, plain_tokenizer_folder: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    named = str(plain_tokenizer_folder) if name == "other" else name
    fingerprint = dataclasses.replace(spelt.metadata.tokenizer, name=named, sha256="00" * 32)
    lost = NgramGraph(spelt.trie, dataclasses.replace(spelt.metadata, tokenizer=fingerprint))
    log_to_stderr("INFO")
    assert {lost.nx.nodes[token_id]["text"] for token_id in lost.ngrams(1)[:, 0].tolist()} == {""}
    [said] = capsys.readouterr().err.splitlines()
    assert "without text" in said


def test_the_graph_says_where_the_names_of_networkx_are() -> None:
    found = graph([1, 2, 3])
    view = set(dir(nx.DiGraph)) - set(dir(NgramGraph))
    names = [name for name in view if not re.search(r"^_|_factory$|_class$|_from$|^clear|^name$|^update$", name)]
    assert {"edges", "nodes", "out_edges", "has_edge", "in_degree"} <= set(names)
    for name in names:
        # Promised behaviour: the message says where the method is.
        with pytest.raises(AttributeError, match=rf"graph\.nx\.{name}$"):
            getattr(found, name)
    with pytest.raises(AttributeError):
        getattr(found, "edgse")  # noqa: B009
    assert copy.copy(found).metadata == found.metadata
