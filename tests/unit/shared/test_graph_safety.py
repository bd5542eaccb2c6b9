"""Malicious graph files: no code in them is executed, and no lookup reads outside its array."""

from __future__ import annotations

import itertools
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculant_graph.draft.generator import DraftGenerator
from speculant_graph.errors import GraphFileError
from speculant_graph.graph.layout import Trie
from speculant_graph.graph.metadata import MAX_CALIBRATION_BYTES
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.graph.store import MIN_BLOCK_BYTES, aligned, around
from support.damage import assert_refused, damaged, rewrite
from support.graphs import assert_same_arrays, graph_of


@pytest.fixture
def path(tmp_path: Path) -> Path:
    token_ids = np.random.default_rng(0).integers(0, 6, 300).tolist()
    graph_of([token_ids], 3, 8).save(tmp_path / "graph.pkl")
    return tmp_path / "graph.pkl"


class Command:
    """Runs a command when unpickled."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (self.command,)


def hostile_pickles(victim: Path) -> dict[str, bytes]:
    command = f"touch {victim}"
    return {
        "reduce": pickle.dumps(Command(command), protocol=5),
        "global": b"cos\nsystem\n(S'" + command.encode() + b"'\ntR.",
        "memo bomb": b"\x80\x02K\x01r\xff\xff\xff\x7f.",
        "huge bytes": b"\x80\x05\x8e" + b"\xff" * 8 + b"A.",
        "huge frame": b"\x80\x05\x95" + b"\xff" * 7 + b"\x00N.",
        "nothing": b"",
        "deep": b"\x80\x05" + b"]" * 100_000 + b"a" * 99_999 + b".",
    }


def test_hostile_pickles_are_refused_and_nothing_runs(path: Path, tmp_path: Path) -> None:
    whole, victim = path.read_bytes(), tmp_path / "victim"
    before = whole.index(b'{"format_version"')
    for name, pickled in hostile_pickles(victim).items():
        # Alone, padded to a graph's size, and before, inside or after the beginning and the end of a graph file.
        for hostile in (
            pickled,
            pickled.ljust(len(whole), b"\x00"),
            pickled[:-1] + b"0" + whole[2:],
            whole[:2] + pickled[2:-1] + b"0" + whole[2:],
            whole[:before] + pickled + whole[before + len(pickled) :],
            whole[: -len(pickled) or None] + pickled,
            whole[:-1] + b"0" + pickled[2:],
        ):
            if hostile != whole:
                path.write_bytes(hostile)
                assert_refused(path)
                assert not victim.exists(), name
    # The pickles are harmful: the pickle module would run them.
    pickle.loads(whole[:-1] + b"0" + hostile_pickles(victim)["reduce"][11:])
    assert victim.exists()


@given(data=st.data())
def test_a_byte_flipped_around_the_arrays_is_refused_or_changes_nothing(path: Path, data: st.DataObject) -> None:
    whole, graph = path.read_bytes(), NgramGraph.load(path)
    around = [*range(len(whole) - 65536 - 15), *range(len(whole) - 15, len(whole))]
    flipped = bytearray(whole)
    for offset in data.draw(st.lists(st.sampled_from(around), min_size=1, max_size=3, unique=True)):
        flipped[offset] ^= data.draw(st.integers(1, 255))
    other = path.with_name("other.pkl")
    other.write_bytes(flipped)
    if flipped[:1] + flipped[2:] == whole[:1] + whole[2:] and flipped[1] == 4:  # only the protocol, and 4 is valid
        found = NgramGraph.load(other)
        assert found.metadata == graph.metadata
        assert_same_arrays(found, graph)
    else:
        assert_refused(other)


@pytest.mark.parametrize("size", [0, 1, 2**16, 2**24 + 64, 2**31, 2**32 - 1])
@pytest.mark.parametrize("field", ["text", "block"])
def test_lying_sizes_are_refused(path: Path, field: str, size: int) -> None:
    whole = path.read_bytes()
    start = whole.index(b'{"format_version"')
    offset = start - 4 if field == "text" else len(whole) - 65536 - 15 - 4
    assert struct.unpack_from("<I", whole, offset)[0] == (len(whole) - start - 65536 - 21 if field == "text" else 65536)
    lying = bytearray(whole)
    struct.pack_into("<I", lying, offset, size)
    if lying != whole:
        path.write_bytes(lying)
        assert_refused(path)


MISSING = object()


WRONG_DESCRIPTIONS: list[tuple[str, object]] = [
    ("array_sha256", []),
    ("array_sha256", MISSING),
    ("format_version", "3"),
    ("max_order", 0),
    ("nodes_per_level", [6, 36, 150]),
    ("nodes_per_level", [2**62, 36, 150, 200]),
    ("tokenizer", {"vocabulary_size": 2}),
    ("tokenizer", {"vocabulary_size": 2**21}),
    ("corpus_files", [["a", "x", "00"]]),
    ("tail_token_ids", [1, 2, 9]),
    ("min_count", 0),
    ("special_tokens", "both"),
    ("calibration", "A" * 4 * (MAX_CALIBRATION_BYTES // 3 + 1)),
]

WRONG_ARRAYS = {
    "token outside the vocabulary": (4, 0, 0, 8),
    "unsorted tokens": (1, 0, 0, 5),
    "unsorted children": (2, 0, 0, 7),
    "count of zero": (3, 1, 1, 0),
    "counts that begin above zero": (1, 0, 1, 1),
    "child past the level": (1, 1, 2, 2**32 - 1),
    "falling children": (2, 2, 2, 0),
    "end of children": (3, -1, 2, 1),
    "argmax child": (1, 2, 0, 2 | 77 << 21),
    "suffix link past the level": (2, 0, 3, 2**31),
    "suffix link to another token": (3, 0, 3, 5),
    "suffix link of a leaf": (4, 3, 2, 1),
    "unigram index": (0, 3, 0, 0),
    "unigram index past the level": (0, 8, 0, 2**31),
}
"""Level, record, column and value; level 0 is the unigram index."""


@pytest.mark.parametrize(("key", "value"), WRONG_DESCRIPTIONS, ids=lambda value: str(value)[:20])
def test_wrong_descriptions_are_refused(path: Path, key: str, value: object) -> None:
    def change(description: dict[str, Any], _: Trie) -> None:
        if value is MISSING:
            del description[key]
        elif isinstance(value, dict) and key == "tokenizer":
            description[key] |= value
        else:
            description[key] = value

    rewrite(path, lambda *_: None)
    NgramGraph.load(path, complete=True)
    rewrite(path, change)
    assert_refused(path)


@pytest.mark.parametrize(
    "text", [b"", b"null", b"[]", b"{", b"[" * 1_000_000, b'{"a":' * 100_000, b"9" * 5000, b"{} {}", b"\x00"]
)
def test_descriptions_that_are_none_are_refused(path: Path, text: bytes) -> None:
    before, after = around(aligned(text.ljust(256), MIN_BLOCK_BYTES), MIN_BLOCK_BYTES)
    path.write_bytes(before + bytes(MIN_BLOCK_BYTES) + after)
    with pytest.raises(GraphFileError):
        NgramGraph.load(path)


@pytest.mark.parametrize("name", WRONG_ARRAYS)
def test_wrong_arrays_with_right_checksums_are_harmless_and_found_by_verification(path: Path, name: str) -> None:
    level, record, column, value = WRONG_ARRAYS[name]

    def change(_: dict[str, Any], trie: Trie) -> None:
        if level == 0:
            trie.first[record] = value
        else:
            trie.level(level)[record, column] = value

    rewrite(path, change)
    NgramGraph.load(path, verify=True)
    assert_refused(path, verify=True)
    look_everywhere(NgramGraph.load(path))


def look_everywhere(graph: NgramGraph) -> None:
    """Call every lookup of a graph, which may be damaged."""
    generator = DraftGenerator(graph)
    for context in itertools.product(range(-1, 7), repeat=3):
        draft = generator.draft(context, 6, "greedy")
        assert all(0 <= token_id < 2**21 for token_id in draft.token_ids)
        graph.count(context)
        for order in (1, 2, 3):
            match = graph.match_order(context, order)
            if match is not None:
                graph.successors(match)
    for length in range(1, 5):
        graph.ngrams(length)


@pytest.mark.hostile
@pytest.mark.slow
def test_no_damage_leads_a_lookup_out_of_its_array(path: Path) -> None:
    graph, random = NgramGraph.load(path), np.random.default_rng(1)
    for _ in range(300):
        look_everywhere(damaged(graph, random))
