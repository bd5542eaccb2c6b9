"""Graph files: round trips, atomic writing, and files that lie."""

from __future__ import annotations

import dataclasses
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from speculant_graph.corpus.files import CorpusFile
from speculant_graph.errors import GraphFileError
from speculant_graph.graph import container
from speculant_graph.graph.builder import build_from_token_ids
from speculant_graph.graph.container import document_room, read_container
from speculant_graph.graph.metadata import FORMAT_VERSION
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.graph.store import load_graph, save_graph, verify_graph
from speculant_graph.types import Fingerprint
from support.graphs import assert_same_arrays


@pytest.fixture
def graph() -> NgramGraph:
    token_ids = np.random.default_rng(0).integers(0, 6, 300).tolist()
    files = (CorpusFile("a.txt", 12, "ab" * 32), CorpusFile("b.txt", 0, "cd" * 32))
    graph = build_from_token_ids(token_ids, Fingerprint("test", "00" * 32, 8), max_order=3)
    return NgramGraph(graph.trie, dataclasses.replace(graph.metadata, corpus_files=files))


@pytest.fixture
def path(graph: NgramGraph, tmp_path: Path) -> Path:
    save_graph(graph, tmp_path / "graph.pkl")
    return tmp_path / "graph.pkl"


def test_round_trip(graph: NgramGraph, path: Path) -> None:
    loaded = load_graph(path)
    assert loaded.metadata == graph.metadata
    assert_same_arrays(loaded, graph)
    assert not loaded.trie.words.flags.writeable
    assert all(loaded.trie.level(length).ctypes.data % 64 == 0 for length in range(1, 5))
    verify_graph(path)
    loaded.save(path)
    assert NgramGraph.load(path, verify=True).metadata == graph.metadata


def test_empty_levels_round_trip(tmp_path: Path) -> None:
    graph = build_from_token_ids([3], Fingerprint("test", "00" * 32, 8), max_order=2)
    graph.save(tmp_path / "graph.pkl")
    assert NgramGraph.load(tmp_path / "graph.pkl", verify=True).count([3]) == 1


def test_the_pickle_holds_plain_values(path: Path) -> None:
    document: Any = read_container(path, FORMAT_VERSION).document
    assert set(document) == {"metadata", "arrays"}
    assert type(document["arrays"]["level_1"]["data"]) is memoryview


@pytest.mark.parametrize("size", [0, 1, 7, 8, 55, 56, 57, 100, 500, 1000, 1500, -1])
def test_truncated_files_are_refused(path: Path, size: int) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[:size])
    assert_refused(path)


def test_truncation_everywhere_is_refused(path: Path) -> None:
    whole = path.read_bytes()
    for size in range(0, len(whole), 97):
        path.write_bytes(whole[:size])
        assert_refused(path)


def test_a_flipped_bit_anywhere_is_refused(path: Path) -> None:
    whole = path.read_bytes()
    *_, num_arrays, pickle_bytes, _ = container._HEADER.unpack_from(whole)
    table_end = container._HEADER.size + num_arrays * container._ENTRY.size
    table = container._ENTRY.iter_unpack(whole[container._HEADER.size : table_end])
    offsets = set(range(container._HEADER.size)) | set(range(0, table_end + pickle_bytes, 7))
    for start, size, _ in table:
        offsets |= {start, start + size // 2, start + size - 1}
    for offset in sorted(offsets):
        flipped = bytearray(whole)
        flipped[offset] ^= 0x10
        path.write_bytes(flipped)
        assert_refused(path, verify=True)


def test_files_that_go_on_are_refused(path: Path) -> None:
    path.write_bytes(path.read_bytes() + bytes(64))
    assert_refused(path)


def test_future_versions_are_named(path: Path) -> None:
    whole = bytearray(path.read_bytes())
    whole[8] = FORMAT_VERSION + 1
    path.write_bytes(whole)
    with pytest.raises(GraphFileError, match=r"has file format 3 and this release reads 2; update"):
        load_graph(path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "graph.pkl"
    assert_refused(path)
    assert_refused(tmp_path)
    for content in (b"", b"text" * 100, pickle.dumps({"graph": list(range(100))})):
        path.write_bytes(content)
        with pytest.raises(GraphFileError, match="is not a graph file; build one"):
            load_graph(path)


def test_changed_arrays_are_found_by_verification_only(path: Path) -> None:
    whole = bytearray(path.read_bytes())
    level = read_container(path, FORMAT_VERSION).document["arrays"]["level_1"]["data"]  # type: ignore[index]
    offset = bytes(whole).index(bytes(level))
    whole[offset + 1] ^= 1
    path.write_bytes(whole)
    load_graph(path)
    with pytest.raises(GraphFileError, match="array 1 of 5 has another checksum"):
        verify_graph(path)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(path: Path) -> None:
    before = path.read_bytes()
    script = f"""
import resource, sys
from speculant_graph.corpus.files import CorpusFile
from speculant_graph.errors import GraphError, GraphFileError
from speculant_graph.graph.ngrams import NgramGraph
graph = NgramGraph.load({str(path)!r})
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
try:
    graph.save({str(path)!r})
except GraphFileError as error:
    assert "can't be written" in str(error) and len(str(error).splitlines()) == 1
    sys.exit(0)
sys.exit("saved")
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", script], env=environment, check=True)
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_an_interrupted_write_leaves_the_old_file(
    graph: NgramGraph, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    before = path.read_bytes()
    with pytest.raises(KeyboardInterrupt):
        save_graph(graph, path)
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_missing_folder_is_one_line(graph: NgramGraph, tmp_path: Path) -> None:
    with pytest.raises(GraphFileError, match=r"there is no folder .*make it or choose another"):
        save_graph(graph, tmp_path / "no" / "graph.pkl")


def test_descriptions_that_could_not_be_read_again_are_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(container, "MAX_OPCODES", 10)
    with pytest.raises(GraphFileError, match="too large to be read again"):
        document_room(tmp_path / "graph.pkl", {"names": ["a"] * 100})


def test_an_open_graph_survives_its_replacement(graph: NgramGraph, path: Path) -> None:
    loaded = load_graph(path)
    other = build_from_token_ids([1, 2], Fingerprint("test", "00" * 32, 8), max_order=1)
    save_graph(other, path)
    assert loaded.counts(1).tolist() == graph.counts(1).tolist()
    assert load_graph(path).metadata.max_order == 1


def assert_refused(path: Path, *, verify: bool = False) -> None:
    with pytest.raises(GraphFileError) as caught:
        verify_graph(path) if verify else load_graph(path)
    assert len(str(caught.value).splitlines()) == 1


def test_a_link_stays_one_and_its_target_is_replaced(tmp_path: Path, graph: NgramGraph) -> None:
    (tmp_path / "versions").mkdir()
    link = tmp_path / "graph.pkl"
    link.symlink_to("versions/1.pkl")
    graph.save(link)
    graph.save(link)
    assert link.is_symlink()
    assert [file.name for file in (tmp_path / "versions").iterdir()] == ["1.pkl"]
    assert load_graph(link).metadata == graph.metadata


def test_only_ordinary_files_are_replaced(tmp_path: Path, graph: NgramGraph) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)  # not a device: a failing test must not destroy one
    for path in (tmp_path, pipe):
        with pytest.raises(GraphFileError, match="not an ordinary file"):
            graph.save(path)
    assert pipe.is_fifo()
