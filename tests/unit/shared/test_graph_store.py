"""Graph files: round trips, atomic writes, and corrupt files."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from speculant_graph.corpus.source import CorpusFile
from speculant_graph.errors import GraphFileError
from speculant_graph.graph.build.builder import build_from_token_ids
from speculant_graph.graph.layout import array_offsets, trie_of
from speculant_graph.graph.metadata import FORMAT_VERSION
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.graph.store import (
    MIN_BLOCK_BYTES,
    aligned,
    around,
    graph_from_pickle,
    new_graph_file,
    read_container,
)
from speculant_graph.types import Fingerprint
from support.damage import assert_refused, rewrite
from support.graphs import assert_same_arrays


@pytest.fixture
def graph() -> NgramGraph:
    token_ids = np.random.default_rng(0).integers(0, 6, 300).tolist()
    files = (CorpusFile("a.txt", 12, "ab" * 32), CorpusFile("b.txt", 0, "cd" * 32))
    graph = build_from_token_ids(token_ids, Fingerprint("test", "00" * 32, 8), max_order=3)
    return NgramGraph(graph.trie, dataclasses.replace(graph.metadata, corpus_files=files))


@pytest.fixture
def path(graph: NgramGraph, tmp_path: Path) -> Path:
    graph.save(tmp_path / "graph.pkl")
    return tmp_path / "graph.pkl"


def test_round_trip(graph: NgramGraph, path: Path) -> None:
    loaded = NgramGraph.load(path)
    assert loaded.metadata == graph.metadata
    assert_same_arrays(loaded, graph)
    assert not loaded.trie.words.flags.writeable
    assert all(loaded.trie.level(length).ctypes.data % 64 == 0 for length in range(1, 5))
    NgramGraph.load(path, complete=True)
    loaded.save(path)
    assert NgramGraph.load(path, verify=True).metadata == graph.metadata


def stand_in(nodes: int) -> NgramGraph:
    """Make a graph of zeros with one level too many; it can be written, but not read from."""
    sizes = (nodes, nodes)
    small = build_from_token_ids([1], Fingerprint("test", "00" * 32, 8), max_order=1).metadata
    words = np.zeros(array_offsets(sizes, 8)[-1], np.uint32)
    return NgramGraph(trie_of(words, sizes, 8), dataclasses.replace(small, nodes_per_level=sizes))


@pytest.mark.parametrize(
    ("nodes", "num_files"),
    [(5, 0), (5, 500), (2200, 600), (2300, 700), (2400, 500), (100_000, 5000)],
)
def test_a_file_is_what_the_pickler_writes(tmp_path: Path, nodes: int, num_files: int) -> None:
    """The sizes of text and block are around the limit above which a pickler writes them outside of a frame."""
    files = tuple(CorpusFile(f"{i}.txt", i, "ab" * 32) for i in range(num_files))
    graph = stand_in(nodes)
    graph = NgramGraph(graph.trie, dataclasses.replace(graph.metadata, corpus_files=files))
    with new_graph_file(tmp_path / "graph.pkl", tmp_path, graph.metadata) as file:
        file.finish(graph.metadata.contexts_per_order, graph.metadata.build_seconds, jobs=2)
    written = (tmp_path / "graph.pkl").read_bytes()
    loaded = NgramGraph.load(tmp_path / "graph.pkl", verify=True)
    assert loaded.metadata == graph.metadata
    for same in (graph, loaded):
        assert pickle.dumps(same, protocol=5) == written
        assert pickle._dumps(same, protocol=5) == written  # type: ignore[attr-defined]
    assert len(pickle.dumps(graph, protocol=5, buffer_callback=lambda _: None)) < len(written) - MIN_BLOCK_BYTES
    graph.save(tmp_path / "saved.pkl")
    assert (tmp_path / "saved.pkl").read_bytes() == written


def test_a_block_of_four_gigabytes_has_the_form_of_the_pickler(tmp_path: Path) -> None:
    """The block is a hole in the file and is never written."""
    num_bytes = (1 << 32) + 4
    text = aligned(b"{}".ljust(1000), num_bytes)
    before, after = around(text, num_bytes)
    with (tmp_path / "graph.pkl").open("wb") as file:
        file.write(before)
        file.seek(num_bytes, os.SEEK_CUR)
        file.write(after)
    found, block = read_container(tmp_path / "graph.pkl")
    assert (found, block.nbytes) == (text, num_bytes)
    assert len(before) % 64 == 0

    class Reduced:
        def __reduce_ex__(self, _: object) -> Any:
            return graph_from_pickle, (hashlib.sha256(text).digest(), text.decode(), pickle.PickleBuffer(block))

    class Around:
        def __init__(self) -> None:
            self.written: list[bytes] = []

        def write(self, data: Any) -> None:
            if memoryview(data).nbytes < num_bytes:
                self.written.append(bytes(data))

    written = Around()
    pickle.dump(Reduced(), written, protocol=5)
    assert written.written == [before, after]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickles_and_copies_of_a_graph_that_was_looked_at(graph: NgramGraph, tmp_path: Path, protocol: int) -> None:
    assert graph.nx.number_of_edges()
    assert graph.context_index
    loaded = pickle.loads(pickle.dumps({"graph": graph}, protocol))["graph"]
    assert loaded.metadata == graph.metadata
    assert_same_arrays(loaded, graph)
    if protocol in (4, 5):  # the default protocols of all supported Python versions
        with (tmp_path / "graph.pkl").open("wb") as file:
            pickle.dump(graph, file, protocol)
        assert NgramGraph.load(tmp_path / "graph.pkl", complete=True).metadata == graph.metadata


def test_pickles_that_do_not_fit_together_are_refused(graph: NgramGraph) -> None:
    _, (checksum, text, block) = graph.__reduce_ex__(4)
    for arguments in (
        (checksum, text + " ", block),
        (bytes(32), text, block),
        (checksum, text, block[:-4]),
        (checksum, text, block + b"more"),
    ):
        with pytest.raises(GraphFileError):
            graph_from_pickle(*arguments)


def test_files_of_other_releases_are_refused_and_replaced(path: Path, graph: NgramGraph) -> None:
    rewrite(path, lambda description, _: description.update(format_version=FORMAT_VERSION + 1))
    with pytest.raises(GraphFileError):
        NgramGraph.load(path)
    graph.save(path)
    assert NgramGraph.load(path).metadata == graph.metadata


def test_files_of_another_size_are_refused(path: Path) -> None:
    whole = path.read_bytes()
    for size in (1, 7, 8, 55, 56, 57, *range(0, len(whole), 97), len(whole) - 1):
        path.write_bytes(whole[:size])
        assert_refused(path)
    path.write_bytes(whole + bytes(64))
    assert_refused(path)


def test_a_flipped_bit_anywhere_is_refused(path: Path) -> None:
    whole = path.read_bytes()
    end = whole.index(bytes(8192))  # the zeros after the last array
    for offset in (*range(160), *range(160, end, 7), *range(end, len(whole), 999), *range(len(whole) - 20, len(whole))):
        flipped = bytearray(whole)
        flipped[offset] ^= 0x10
        path.write_bytes(flipped)
        assert_refused(path, verify=True)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(path: Path) -> None:
    before = path.read_bytes()
    script = f"""
import resource, sys
from speculant_graph.corpus.source import CorpusFile
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


def test_a_link_stays_one_and_its_target_is_replaced(tmp_path: Path, graph: NgramGraph) -> None:
    (tmp_path / "versions").mkdir()
    link = tmp_path / "graph.pkl"
    link.symlink_to("versions/1.pkl")
    graph.save(link)
    graph.save(link)
    assert link.is_symlink()
    assert [file.name for file in (tmp_path / "versions").iterdir()] == ["1.pkl"]
    assert NgramGraph.load(link).metadata == graph.metadata


def test_only_ordinary_files_are_replaced(tmp_path: Path, graph: NgramGraph) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)  # not a device: a failing test must not destroy one
    for path in (tmp_path, pipe):
        with pytest.raises(GraphFileError):
            graph.save(path)
    assert pipe.is_fifo()
    with pytest.raises(GraphFileError):
        graph.save(tmp_path / "no" / "graph.pkl")
