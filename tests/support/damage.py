"""Graphs of which words are wrong, as a damaged file has them, and files that say something wrong."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from speculant_graph.errors import GraphFileError
from speculant_graph.graph.layout import Trie, array_offsets, trie_of
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.graph.store import aligned, around, read_container


def damaged(graph: NgramGraph, random: np.random.Generator) -> NgramGraph:
    """Return a graph with fewer than thirty words changed to what is likely to lead a kernel astray."""
    words, table = graph.trie.words.copy(), graph.trie.table
    places = random.integers(int(table[:-1, 0].min()), words.size, random.integers(0, 30))
    values = random.choice([0, 1, 2**31, 2**32 - 1, 50, 300, 2**21 - 1], places.size)
    words[places] = values ^ random.integers(0, 2, places.size)
    words.flags.writeable = False
    return NgramGraph(Trie(words, table, graph.trie.num_model_words), graph.metadata)


def assert_refused(path: Path, *, verify: bool = False) -> None:
    """Hold that a file is refused in one line when it is opened, or when all of it is looked at."""
    with pytest.raises(GraphFileError) as caught:
        NgramGraph.load(path, complete=True) if verify else NgramGraph.load(path)
    assert len(str(caught.value).splitlines()) == 1


def rewrite(path: Path, change: Callable[[dict[str, Any], Trie], object]) -> None:
    """Write a graph file again, checksums right, with another description or other words.

    Args:
        path: the file.
        change: changes the description's values and the arrays, which are writable, in place. A description for which
            the checksums were changed keeps those.
    """
    text, stored = read_container(path)
    packed, block = json.loads(text), np.frombuffer(stored, np.uint32).copy()
    sizes = tuple(packed["nodes_per_level"]), packed["tokenizer"]["vocabulary_size"], packed["num_model_words"]
    claimed = list(packed["array_sha256"])
    change(packed, trie_of(block, *sizes))
    if packed.get("array_sha256") == claimed:
        starts = [*array_offsets(*sizes)[:-1], block.size]
        packed["array_sha256"] = [
            hashlib.sha256(block[start:stop]).hexdigest() for start, stop in itertools.pairwise(starts)
        ]
    before, after = around(aligned(json.dumps(packed).encode(), block.nbytes), block.nbytes)
    path.write_bytes(before + block.tobytes() + after)
