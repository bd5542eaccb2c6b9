"""Graphs with damaged words, and graph files with wrong contents but valid checksums."""

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
    """Return a graph with fewer than thirty words changed to values that are likely to mislead a kernel."""
    words, table = graph.trie.words.copy(), graph.trie.table
    places = random.integers(int(table[:-1, 0].min()), words.size, random.integers(0, 30))
    values = random.choice([0, 1, 2**31, 2**32 - 1, 50, 300, 2**21 - 1], places.size)
    words[places] = values ^ random.integers(0, 2, places.size)
    words.flags.writeable = False
    return NgramGraph(Trie(words, table, graph.trie.num_model_words), graph.metadata)


def assert_refused(path: Path, *, verify: bool = False) -> None:
    """Assert that a file is refused with a one-line message when it is opened or, with ``verify``, read in full."""
    with pytest.raises(GraphFileError) as caught:
        NgramGraph.load(path, complete=True) if verify else NgramGraph.load(path)
    assert len(str(caught.value).splitlines()) == 1


def rewrite(path: Path, change: Callable[[dict[str, Any], Trie], object]) -> None:
    """Rewrite a graph file with a changed description or changed words, and with correct checksums.

    Args:
        path: the file.
        change: changes the description's values and the writable arrays in place. If it changes checksums, these are
            kept.
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
