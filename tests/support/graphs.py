"""Graphs of token ids, built in every way that the builder offers."""

from __future__ import annotations

import dataclasses
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from speculant_graph.corpus.stream import DOCUMENT_SEPARATOR
from speculant_graph.graph.build.assemble import assemble_graph
from speculant_graph.graph.build.build_report import BuildReport
from speculant_graph.graph.build.builder import build_from_token_ids, describe_tokens
from speculant_graph.graph.build.count import (
    blocks_of,
    count_partition,
    count_partitions,
    plan_partitions,
    space_for_keys,
)
from speculant_graph.graph.build.keys import KeyLayout
from speculant_graph.graph.layout import UInt32Array, array_offsets, trie_of
from speculant_graph.graph.ngrams import Ngram, NgramGraph
from speculant_graph.types import Fingerprint


def fingerprint(vocabulary_size: int) -> Fingerprint:
    return Fingerprint("test", "00" * 32, vocabulary_size)


def graph_of(
    documents: Sequence[Sequence[int]], max_order: int, vocabulary_size: int, *, boundaries: bool = False
) -> NgramGraph:
    """Build a graph of documents, as separate documents or as one stream."""
    stream = [token_id for document in documents for token_id in document]
    return build_from_token_ids(
        stream, fingerprint(vocabulary_size), max_order=max_order, documents=documents if boundaries else None
    )


def graph_in_parts(
    token_ids: Sequence[int], max_order: int, vocabulary_size: int, max_keys: int, block_tokens: int = 0
) -> tuple[NgramGraph, int]:
    """Build a graph of a stream, separators included, in parts of at most ``max_keys`` keys.

    If ``block_tokens`` is not 0, each part reads the stream in blocks of that many positions.

    Returns:
        The graph, and the number of parts.
    """
    stream = np.array(token_ids, np.uint32)
    layout = KeyLayout.of(vocabulary_size, max_order)
    num_separators = int(np.count_nonzero(stream == DOCUMENT_SEPARATOR))
    metadata = describe_tokens(
        stream,
        fingerprint(vocabulary_size),
        max_order=max_order,
        num_documents=num_separators + 1,
        document_boundaries=num_separators > 0,
    )
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        parts = list(plan_partitions(stream, vocabulary_size, layout, max_keys))
        if block_tokens:
            blocks = list(blocks_of(stream, layout, block_tokens))
            space = [space_for_keys(part.num_sorted(layout.length) + 2 * layout.length, layout) for part in parts]
            records = [
                count_partition(blocks, part, layout, folder / f"part-{index}", space[index], space[index].copy())
                for index, part in enumerate(parts)
            ]
        else:
            records = list(count_partitions(stream, parts, layout, folder, 1))
        assemble_graph(folder / "graph", folder, records, metadata, 1, BuildReport(), lambda done, total: None)
        return NgramGraph.load(folder / "graph", verify=True), len(parts)


def with_model(graph: NgramGraph, model_words: UInt32Array) -> NgramGraph:
    """Return a graph with a neural model."""
    sizes = graph.trie.nodes_per_level, graph.vocabulary_size, model_words.size
    words = np.zeros(array_offsets(*sizes)[-1], np.uint32)
    words[: graph.trie.words.size] = graph.trie.words
    words[-model_words.size :] = model_words
    metadata = dataclasses.replace(graph.metadata, num_model_words=model_words.size)
    return NgramGraph(trie_of(words, *sizes), metadata)


def counts_of(graph: NgramGraph) -> Counter[Ngram]:
    """Return every n-gram of a graph with its count."""
    counted: Counter[Ngram] = Counter()
    for length in range(1, graph.max_order + 2):
        ngrams = [tuple(row) for row in graph.ngrams(length).tolist()]
        assert ngrams == sorted(set(ngrams)), "in order, each once"
        counted.update(dict(zip(ngrams, graph.counts(length).tolist(), strict=True)))
    return counted


def assert_same_arrays(first: NgramGraph, second: NgramGraph) -> None:
    """Assert that two graphs have equal words, and equal sizes and seams in their metadata."""
    assert first.trie.nodes_per_level == second.trie.nodes_per_level
    for length in range(1, first.max_order + 2):
        np.testing.assert_array_equal(first.trie.level(length), second.trie.level(length))
    np.testing.assert_array_equal(first.trie.first, second.trie.first)
    facts = [
        dataclasses.replace(graph.metadata, built_at="", build_seconds=0.0, corpus_files=(), num_documents=0)
        for graph in (first, second)
    ]
    assert facts[0] == facts[1]
