"""Graphs in object storage: downloaded once, checked, and refused with one line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from speculant_graph.corpus.storage import address_of
from speculant_graph.errors import GraphFileError
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.graph.remote import cache_folder, local_graph
from support.graphs import assert_same_arrays, graph_of

ADDRESS = Path("memory://bucket/graph.pkl")


@pytest.fixture
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    storage = fsspec.filesystem("memory")
    yield storage
    storage.store.clear()


def put(storage: Any, folder: Path, token_ids: list[int]) -> NgramGraph:
    graph = graph_of([token_ids], 2, 10)
    graph.save(folder / "graph.pkl")
    storage.pipe_file("/bucket/graph.pkl", (folder / "graph.pkl").read_bytes())
    return graph


@pytest.mark.parametrize(
    ("path", "address"),
    [
        ("s3://bucket/a/graph.pkl", "s3://bucket/a/graph.pkl"),
        ("hf://datasets/name/graph.pkl", "hf://datasets/name/graph.pkl"),
        ("file:///folder/graph.pkl", "file:///folder/graph.pkl"),
        ("/folder/graph.pkl", None),
        ("graph.pkl", None),
        ("a:b/graph.pkl", None),
    ],
)
def test_addresses_are_told_from_paths(path: str, address: str | None) -> None:
    assert address_of(Path(path)) == address


def test_a_graph_is_fetched_once_and_again_when_it_changed(storage: Any, tmp_path: Path) -> None:
    graph = put(storage, tmp_path, [1, 2, 3, 1, 2])
    first = local_graph(ADDRESS)
    assert_same_arrays(NgramGraph.load(first, verify=True), graph)
    before = first.stat().st_mtime_ns
    assert local_graph(ADDRESS) == first
    assert first.stat().st_mtime_ns == before
    graph = put(storage, tmp_path, [1, 2, 3, 4, 5, 6])
    second = local_graph(ADDRESS)
    assert_same_arrays(NgramGraph.load(second, verify=True), graph)
    assert list(cache_folder().iterdir()) == [second], "the older one is gone"


def test_a_file_of_this_machine_may_have_an_address(storage: Any, tmp_path: Path) -> None:
    graph = put(storage, tmp_path, [1, 2, 3])
    assert_same_arrays(NgramGraph.load(local_graph(Path(f"file://{tmp_path}/graph.pkl"))), graph)
    assert local_graph(tmp_path / "graph.pkl") == tmp_path / "graph.pkl"


def test_what_is_not_there_or_damaged_is_refused(storage: Any, tmp_path: Path) -> None:
    with pytest.raises(GraphFileError) as caught:
        local_graph(ADDRESS)
    assert "memory://bucket/graph.pkl" in caught.value.message
    put(storage, tmp_path, [1, 2, 3, 1, 2])
    content = bytearray((tmp_path / "graph.pkl").read_bytes())
    for position in (len(content) // 2, 200):
        damaged = content.copy()
        damaged[position] ^= 1
        storage.pipe_file("/bucket/graph.pkl", bytes(damaged))
        with pytest.raises(GraphFileError) as caught:
            local_graph(ADDRESS)
        assert "memory://bucket/graph.pkl" in caught.value.message
        assert "\n" not in str(caught.value)
        assert list(cache_folder().iterdir()) == []


def test_a_package_that_is_missing_is_named_by_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: str) -> None:
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec.core, "url_to_fs", missing)
    with pytest.raises(GraphFileError) as caught:
        local_graph(Path("s3://bucket/graph.pkl"))
    assert "speculant-graph[storage]" in caught.value.fix
