"""The lookup cache of llama.cpp, read as llama.cpp reads it."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculant_graph.engines.llama_cpp import lookup_table
from speculant_graph.engines.llama_cpp.lookup_table import ALWAYS_ENOUGH, export_llama_lookup
from speculant_graph.errors import ConfigError, GraphFileError
from speculant_graph.graph.layout import CHILD, trie_of
from speculant_graph.graph.ngrams import NgramGraph
from support.graphs import graph_of
from support.oracle import OracleGraph

VOCABULARY_SIZE = 50

documents = st.lists(
    st.lists(st.one_of(st.integers(0, 4), st.just(VOCABULARY_SIZE - 1)), min_size=1, max_size=40),
    min_size=1,
    max_size=3,
)

Cache = dict[tuple[int, ...], dict[int, int]]


def read_cache(path: Path) -> Cache:
    """Read a file as ``common_ngram_cache_load`` does, with its assertions; return contexts without padding."""
    cache: Cache = {}
    with path.open("rb") as file:
        while context := file.read(16):
            token_ids = struct.unpack("<4i", context)
            (num_tokens,) = struct.unpack("<i", file.read(4))
            assert num_tokens > 0
            counts = {}
            for _ in range(num_tokens):
                token_id, count = struct.unpack("<2i", file.read(8))
                assert count > 0
                assert counts.setdefault(token_id, count) is count, "a token twice"
            length = token_ids.index(-1) if -1 in token_ids else 4
            assert set(token_ids[length:]) <= {-1}
            assert cache.setdefault(token_ids[:length], counts) is counts, "a context twice"
    return cache


@given(
    texts=documents,
    max_order=st.integers(1, 6),
    min_count=st.integers(1, 4),
    min_share=st.sampled_from([0.0, 0.5, 0.75, 1.0]),
    boundaries=st.booleans(),
    contexts_at_a_time=st.integers(1, 9),
)
def test_the_file_holds_what_is_likely_enough(
    texts: list[list[int]],
    max_order: int,
    min_count: int,
    min_share: float,
    boundaries: bool,
    contexts_at_a_time: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    stream = [token_id for text in texts for token_id in text]
    slow = OracleGraph(texts if boundaries else [stream], max_order)
    expected: Cache = {}
    for context, successors in slow.context_index.items():
        best = max(successors.values())
        is_frequent = slow.ngram_counts[context] >= min_count
        if len(context) == min(4, max_order) and is_frequent and best >= min_share * sum(successors.values()):
            first = min(token for token, count in successors.items() if count == best)
            expected[context] = {first: max(best, ALWAYS_ENOUGH)}
    path = tmp_path_factory.mktemp("lookup") / "lookup.bin"
    graph = graph_of(texts, max_order, VOCABULARY_SIZE, boundaries=boundaries)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(lookup_table, "_CONTEXTS_AT_A_TIME", contexts_at_a_time)
        num_contexts = export_llama_lookup(graph, path, min_count=min_count, min_share=min_share)
    assert read_cache(path) == expected
    assert num_contexts == len(expected)


def test_what_is_refused_leaves_nothing_behind(tmp_path: Path) -> None:
    graph = graph_of([[1, 2, 1, 2, 3]], 3, VOCABULARY_SIZE)
    for wrong in ({"min_count": 0}, {"min_share": 2}):
        with pytest.raises(ConfigError) as caught:
            export_llama_lookup(graph, tmp_path / "lookup.bin", **wrong)
        assert caught.value.field == next(iter(wrong))
    with pytest.raises(GraphFileError):
        export_llama_lookup(graph, tmp_path / "none" / "lookup.bin")
    for record, child in ((2, 0), (1, 2**32 - 1)):
        words = graph.trie.words.copy()
        broken = NgramGraph(trie_of(words, graph.trie.nodes_per_level, VOCABULARY_SIZE), graph.metadata)
        broken.trie.level(3)[record, CHILD] = child
        (tmp_path / "lookup.bin").write_bytes(b"older")
        with pytest.raises(GraphFileError):
            export_llama_lookup(broken, tmp_path / "lookup.bin")
        assert (tmp_path / "lookup.bin").read_bytes() == b"older"
        (tmp_path / "lookup.bin").unlink()
        assert not list(tmp_path.iterdir())
