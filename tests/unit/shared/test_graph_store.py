"""Graph files: round trips, atomic writing, and files that lie."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from speculant_graph.errors import GraphFileError
from speculant_graph.graph import container
from speculant_graph.graph.builder import build_from_token_ids
from speculant_graph.graph.container import read_container, write_container
from speculant_graph.graph.metadata import FORMAT_VERSION, CorpusFile
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.graph.store import load_graph, save_graph, verify_graph
from speculant_graph.types import Fingerprint


@pytest.fixture
def graph() -> NgramGraph:
    token_ids = np.random.default_rng(0).integers(0, 6, 300).tolist()
    files = (CorpusFile("a.txt", 12, "ab" * 32), CorpusFile("b.txt", 0, "cd" * 32))
    return build_from_token_ids(token_ids, Fingerprint("test", "00" * 32, 8), max_order=3, corpus_files=files)


@pytest.fixture
def path(graph: NgramGraph, tmp_path: Path) -> Path:
    save_graph(graph, tmp_path / "graph.pkl")
    return tmp_path / "graph.pkl"


def test_round_trip(graph: NgramGraph, path: Path) -> None:
    loaded = load_graph(path)
    assert loaded.metadata == graph.metadata
    for field in dataclasses.fields(graph.trie):
        mine, theirs = getattr(graph.trie, field.name), getattr(loaded.trie, field.name)
        assert [array.tolist() for array in mine] == [array.tolist() for array in theirs]
        assert not any(array.flags.writeable for array in theirs)
        assert all(array.ctypes.data % 64 == 0 for array in theirs)
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
    assert type(document["arrays"]["counts"][0]["data"]) is memoryview


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
    *_, num_buffers, pickle_bytes, _ = container._HEADER.unpack_from(whole)
    table_end = container._HEADER.size + num_buffers * container._ENTRY.size
    table = container._ENTRY.iter_unpack(whole[container._HEADER.size : table_end])
    offsets = set(range(container._HEADER.size)) | set(range(0, table_end + pickle_bytes, 7))
    for start, size, _ in table:
        offsets |= {start, start + size // 2, start + size - 1}
    for offset in sorted(offsets):
        flipped = bytearray(whole)
        flipped[offset] ^= 0x10
        path.write_bytes(flipped)
        assert_refused(path, verify=True)


def test_future_versions_are_named(path: Path) -> None:
    whole = bytearray(path.read_bytes())
    whole[8] = FORMAT_VERSION + 1
    path.write_bytes(whole)
    with pytest.raises(GraphFileError, match=r"has file format 2 and this release reads 1; update"):
        load_graph(path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "graph.pkl"
    assert_refused(path)
    assert_refused(tmp_path)
    for content in (b"", b"text" * 100, pickle.dumps({"graph": list(range(100))})):
        path.write_bytes(content)
        with pytest.raises(GraphFileError, match="is not a graph file; build one"):
            load_graph(path)


class Command:
    """Runs a command when it is unpickled."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (self.command,)


def hostile_pickles(victim: Path) -> dict[str, bytes]:
    command = f"touch {victim}"
    return {
        "reduce": pickle.dumps(Command(command), protocol=5),
        "inside": pickle.dumps({"metadata": {"a": Command(command)}}, protocol=5),
        "global": b"cos\nsystem\n(S'" + command.encode() + b"'\ntR.",
        "inst": b"(S'" + command.encode() + b"'\nios\nsystem\n.",
        "extension": b"\x80\x02\x82\x01.",
        "memo bomb": b"\x80\x02K\x01r\xff\xff\xff\x7f.",
        "huge bytes": b"\x80\x05\x8e" + b"\xff" * 8 + b"A.",
        "huge frame": b"\x80\x05\x95" + b"\xff" * 7 + b"\x00N.",
        "persistent id": b"\x80\x05Pid\n.",
        "too many buffers": b"\x80\x05\x97\x97\x97.",
        "no stop": b"\x80\x05N",
        "nothing": b"",
        "empty stack": b"\x80\x05.",
        "deep": b"\x80\x05" + b"]" * 100_000 + b"a" * 99_999 + b".",
        "wrong type": pickle.dumps([1, 2], protocol=5),
        "no fields": pickle.dumps({"metadata": {}, "arrays": {}}, protocol=5),
    }


def test_hostile_pickles_are_refused_and_nothing_runs(tmp_path: Path) -> None:
    victim, path = tmp_path / "victim", tmp_path / "graph.pkl"
    for name, pickled in hostile_pickles(victim).items():
        header = container._HEADER.pack(
            container.MAGIC, FORMAT_VERSION, 0, len(pickled), hashlib.sha256(pickled).digest()
        )
        path.write_bytes(header + pickled)
        assert_refused(path)
        path.write_bytes(pickled.ljust(64))
        assert_refused(path)
        assert not victim.exists(), name


def test_lying_headers_are_refused(path: Path) -> None:
    whole = path.read_bytes()
    magic, version, num_buffers, pickle_bytes, digest = container._HEADER.unpack_from(whole)
    for lie in ((2**32 - 1, pickle_bytes), (0, pickle_bytes), (num_buffers, 2**63), (num_buffers, 0)):
        path.write_bytes(container._HEADER.pack(magic, version, *lie, digest) + whole[container._HEADER.size :])
        assert_refused(path)


def rewritten(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Save a file again, all checksums right, with another document."""
    document: Any = read_container(path, FORMAT_VERSION).document
    for column in document["arrays"].values():
        for entry in column:
            entry["data"] = np.frombuffer(entry["data"], np.uint32).copy()
    change(document)
    for column in document["arrays"].values():
        for entry in column:
            if isinstance(entry["data"], np.ndarray):
                entry["data"] = pickle.PickleBuffer(entry["data"].data)
    write_container(path, FORMAT_VERSION, document)


def tampered_array(column: str, level: int, index: int, value: int) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        document["arrays"][column][level]["data"][index] = value

    return change


def changed_entry(*keys: str | int, value: object) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        target: Any = document
        for key in keys[:-1]:
            target = target[key]
        target[keys[-1]] = value

    return change


TAMPERINGS = {
    "offset past the level": tampered_array("child_offsets", 0, -1, 2**32 - 1),
    "offset inside past the level": tampered_array("child_offsets", 0, 1, 2**31),
    "falling offsets": tampered_array("child_offsets", 1, 2, 0),
    "first offset": tampered_array("child_offsets", 0, 0, 1),
    "best child of another row": tampered_array("best_children", 1, 0, 2**31),
    "token outside the vocabulary": tampered_array("token_ids", 3, 0, 8),
    "unsorted tokens": tampered_array("token_ids", 0, 0, 5),
    "unsorted row": tampered_array("token_ids", 1, 0, 7),
    "zero count": tampered_array("counts", 2, 0, 0),
    "short column": changed_entry("arrays", "counts", 0, "data", value=np.ones(1, np.uint32)),
    "object type": changed_entry("arrays", "counts", 0, "dtype", value="O"),
    "shape": changed_entry("arrays", "counts", 0, "shape", value=[2**40]),
    "text for an array": changed_entry("arrays", "counts", 0, "data", value="text"),
    "missing level": changed_entry("arrays", "counts", value=[]),
    "missing column": lambda document: document["arrays"].pop("counts"),
    "order": changed_entry("metadata", "max_order", value=9),
    "no order": changed_entry("metadata", "max_order", value=0),
    "order as text": changed_entry("metadata", "max_order", value="3"),
    "vocabulary": changed_entry("metadata", "tokenizer", "vocabulary_size", value=2),
    "name": changed_entry("metadata", "tokenizer", "name", value=7),
    "metadata": changed_entry("metadata", value=None),
    "file sizes": changed_entry("metadata", "corpus_files", "size_bytes", value=["x"]),
}


@pytest.mark.parametrize("name", TAMPERINGS)
def test_tampered_documents_are_refused(path: Path, name: str) -> None:
    rewritten(path, lambda _: None)
    verify_graph(path)
    rewritten(path, TAMPERINGS[name])
    assert_refused(path)


def test_changed_arrays_are_found_by_verification_only(path: Path) -> None:
    whole = bytearray(path.read_bytes())
    counts = read_container(path, FORMAT_VERSION).document["arrays"]["counts"][0]["data"]  # type: ignore[index]
    offset = bytes(whole).index(bytes(counts))
    whole[offset + 1] ^= 1
    path.write_bytes(whole)
    load_graph(path)
    with pytest.raises(GraphFileError, match="an array has another checksum"):
        verify_graph(path)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(path: Path) -> None:
    before = path.read_bytes()
    script = f"""
import resource, sys
from speculant_graph.errors import GraphFileError
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
    with pytest.raises(GraphFileError, match="can't be written"):
        save_graph(graph, tmp_path / "no" / "graph.pkl")


def test_descriptions_that_could_not_be_read_again_are_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(container, "MAX_OPCODES", 10)
    with pytest.raises(GraphFileError, match="too large to be read again"):
        write_container(tmp_path / "graph.pkl", FORMAT_VERSION, {"names": ["a"] * 100})


def test_an_open_graph_survives_its_replacement(graph: NgramGraph, path: Path) -> None:
    loaded = load_graph(path)
    other = build_from_token_ids([1, 2], Fingerprint("test", "00" * 32, 8), max_order=1)
    save_graph(other, path)
    assert loaded.trie.counts[0].tolist() == graph.trie.counts[0].tolist()
    assert load_graph(path).metadata.max_order == 1


def assert_refused(path: Path, *, verify: bool = False) -> None:
    with pytest.raises(GraphFileError) as caught:
        load_graph(path, verify=verify)
    assert len(str(caught.value).splitlines()) == 1


def test_only_ordinary_files_are_replaced(tmp_path: Path, graph: NgramGraph) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)  # not a device: a failing test must not destroy one
    for path in (tmp_path, pipe):
        with pytest.raises(GraphFileError, match="not an ordinary file"):
            graph.save(path)
    assert pipe.is_fifo()
