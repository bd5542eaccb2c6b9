"""Graph files that lie: nothing of them is executed, and no lookup leaves its array."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from speculant_graph.errors import GraphError, GraphFileError
from speculant_graph.graph import container
from speculant_graph.graph.container import NewContainer, document_room, read_container
from speculant_graph.graph.metadata import FORMAT_VERSION
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.graph.store import load_graph, verify_graph
from support.bounds import run_with_bounds_checks
from support.damage import damaged
from support.graphs import graph_of


@pytest.fixture
def path(tmp_path: Path) -> Path:
    token_ids = np.random.default_rng(0).integers(0, 6, 300).tolist()
    graph_of([token_ids], 3, 8).save(tmp_path / "graph.pkl")
    return tmp_path / "graph.pkl"


def assert_refused(path: Path, *, verify: bool = False) -> None:
    with pytest.raises(GraphFileError) as caught:
        verify_graph(path) if verify else load_graph(path)
    assert len(str(caught.value).splitlines()) == 1


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
    magic, version, num_arrays, pickle_bytes, digest = container._HEADER.unpack_from(whole)
    for lie in ((2**32 - 1, pickle_bytes), (0, pickle_bytes), (num_arrays, 2**63), (num_arrays, 0)):
        path.write_bytes(container._HEADER.pack(magic, version, *lie, digest) + whole[container._HEADER.size :])
        assert_refused(path)


def rewritten(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Save a file again, all checksums right, with another document or other arrays."""
    document: Any = read_container(path, FORMAT_VERSION).document
    for entry in document["arrays"].values():
        entry["data"] = np.frombuffer(entry["data"], np.uint32).copy()
    change(document)
    entries = document["arrays"].values() if isinstance(document, dict) else ()
    arrays = [entry["data"] for entry in entries if isinstance(entry["data"], np.ndarray)]
    for entry in entries:
        if isinstance(entry["data"], np.ndarray):
            entry["data"] = pickle.PickleBuffer(b"")
    sizes = [array.nbytes for array in arrays]
    with NewContainer(path, path.parent, FORMAT_VERSION, sizes, document_room(path, document)) as file:
        for offset, array in zip(file.offsets, arrays, strict=True):
            file.file.seek(offset)
            file.file.write(array.tobytes())
        file.finish(document)


def tampered(level: int, record: int, column: int, value: int) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        width = 4 if level < 4 else 3
        document["arrays"][f"level_{level}"]["data"].reshape(-1, width)[record, column] = value

    return change


def changed_entry(*keys: str | int, value: object) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        target: Any = document
        for key in keys[:-1]:
            target = target[key]
        target[keys[-1]] = value

    return change


def changed_word(name: str, place: int, value: int) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        document["arrays"][name]["data"][place] = value

    return change


WRONG_DOCUMENTS = {
    "short array": changed_entry("arrays", "level_1", "data", value=np.ones(1, np.uint32)),
    "object type": changed_entry("arrays", "level_1", "dtype", value="O"),
    "size": changed_entry("arrays", "level_1", "size", value=2**40),
    "text for an array": changed_entry("arrays", "level_1", "data", value="text"),
    "missing level": lambda document: document["arrays"].pop("level_4"),
    "missing table": lambda document: document["arrays"].pop("first"),
    "no arrays": changed_entry("arrays", value={}),
    "order": changed_entry("metadata", "max_order", value=9),
    "no order": changed_entry("metadata", "max_order", value=0),
    "order as text": changed_entry("metadata", "max_order", value="3"),
    "fewer levels": changed_entry("metadata", "nodes_per_level", value=[6, 36, 150]),
    "larger level": changed_entry("metadata", "nodes_per_level", value=[2**62, 36, 150, 200]),
    "negative level": changed_entry("metadata", "nodes_per_level", value=[-1, 36, 150, 200]),
    "vocabulary": changed_entry("metadata", "tokenizer", "vocabulary_size", value=2),
    "huge vocabulary": changed_entry("metadata", "tokenizer", "vocabulary_size", value=2**21),
    "name": changed_entry("metadata", "tokenizer", "name", value=7),
    "metadata": changed_entry("metadata", value=None),
    "file sizes": changed_entry("metadata", "corpus_files", "size_bytes", value=["x"]),
    "seam outside the vocabulary": changed_entry("metadata", "tail_token_ids", value=[1, 2, 9]),
    "seam": changed_entry("metadata", "tail_token_ids", value=[1] * 9),
    "minimum": changed_entry("metadata", "min_count", value=0),
    "boundaries": changed_entry("metadata", "document_boundaries", value=1),
    "special tokens": changed_entry("metadata", "special_tokens", value="both"),
}

WRONG_ARRAYS = {
    "token outside the vocabulary": tampered(4, 0, 0, 8),
    "unsorted tokens": tampered(1, 0, 0, 5),
    "unsorted row": tampered(2, 0, 0, 7),
    "count of zero": tampered(3, 1, 1, 0),
    "counts that begin above zero": tampered(1, 0, 1, 1),
    "child past the level": tampered(1, 1, 2, 2**32 - 1),
    "falling children": tampered(2, 2, 2, 0),
    "end of children": tampered(3, -1, 2, 1),
    "most frequent child": tampered(1, 2, 0, 2 | 77 << 21),
    "link past the level": tampered(2, 0, 3, 2**31),
    "link to another token": tampered(3, 0, 3, 5),
    "link of a leaf": tampered(4, 3, 2, 1),
    "table of tokens": changed_word("first", 3, 0),
    "table past the level": changed_word("first", 8, 2**31),
}


@pytest.mark.parametrize("name", WRONG_DOCUMENTS)
def test_wrong_descriptions_are_refused(path: Path, name: str) -> None:
    rewritten(path, lambda _: None)
    verify_graph(path)
    rewritten(path, WRONG_DOCUMENTS[name])
    assert_refused(path)


@pytest.mark.parametrize("name", WRONG_ARRAYS)
def test_wrong_arrays_with_right_checksums_are_harmless_and_found_by_verification(path: Path, name: str) -> None:
    rewritten(path, WRONG_ARRAYS[name])
    assert_refused(path, verify=True)
    look_everywhere(load_graph(path))


def look_everywhere(graph: NgramGraph) -> None:
    """Ask a graph, damaged or not, all there is to ask."""
    for context in itertools.product(range(-1, 7), repeat=3):
        draft = graph.draft_greedy(context, 6)
        assert all(0 <= token_id < 2**21 for token_id in draft)
        graph.count(context)
        for order in (1, 2, 3):
            match = graph.match_order(context, order)
            if match is not None:
                graph.most_frequent(match)
                for token_id, _ in graph.successors(match).most_common(3):
                    with contextlib.suppress(GraphError):  # a search in an unsorted row may miss
                        graph.slide(match, token_id)
    for length in range(1, 5):
        graph.ngrams(length)


def look_into_damaged_graphs(path: str, num_graphs: int) -> None:
    """Look up everything in a graph of which some words are wrong, again and again."""
    graph = NgramGraph.load(path)
    random = np.random.default_rng(1)
    for _ in range(num_graphs):
        look_everywhere(damaged(graph, random))


@pytest.mark.slow
def test_no_damage_leads_a_lookup_out_of_its_array(path: Path, tmp_path: Path) -> None:
    run_with_bounds_checks(look_into_damaged_graphs, tmp_path / "kernels", str(path), 300)
