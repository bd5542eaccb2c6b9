"""Operations on graphs: merge two graphs, add text to a graph, and prune rare n-grams.

A merge or an update gives the same n-gram arrays as a build from all the text, including n-grams across the boundary
between the texts.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from speculant_graph.config import GraphConfig
from speculant_graph.corpus.tokenize import CorpusTokenizer
from speculant_graph.errors import ConfigError, GraphError, GraphFileError, TokenizerMismatchError
from speculant_graph.files import replacing, workspace, writing
from speculant_graph.graph.build.assemble import assemble_graph
from speculant_graph.graph.build.build_report import BuildReport, built_at
from speculant_graph.graph.build.builder import (
    BuildProgress,
    GraphBuilder,
    ProgressCallback,
)
from speculant_graph.graph.build.keys import KeyLayout, KeyStream, emit_records, keys_of, keys_of_ngrams, merged
from speculant_graph.graph.layout import MAX_NODES, Int64Array, UInt32Array, UInt64Array
from speculant_graph.graph.metadata import GraphMetadata
from speculant_graph.graph.ngrams import Ngram, NgramGraph
from speculant_graph.graph.store import check_description, check_graph, checked_output
from speculant_graph.machine import num_cores
from speculant_graph.version import VERSION


def merge_graphs(
    first: NgramGraph,
    second: NgramGraph,
    output: str | Path,
    *,
    jobs: int = 1,
    progress: ProgressCallback | None = None,
    model: UInt32Array | None = None,
) -> NgramGraph:
    """Write the graph of one corpus that consists of the first corpus followed by the second.

    The merged graph keeps the calibration and the neural model of the larger corpus.

    Args:
        first: graph of the first corpus.
        second: graph of the second corpus.
        output: the graph file; it may be the file of ``first`` or ``second``.
        jobs: number of threads.
        progress: called at every step.
        model: a neural model to keep instead of the graphs' own models, as 32-bit words.

    Raises:
        TokenizerMismatchError: the tokenizers differ.
        GraphError: the graphs differ in their largest order, document boundaries or treatment of special tokens, or one
            graph was pruned.
        GraphFileError: a graph is damaged, or the file can't be written.
    """
    _require_alike(first, second)
    for graph in (first, second):
        check_graph(graph.trie, graph.metadata)
    ours, theirs = first.metadata, second.metadata
    if theirs.head_token_ids and not second.count(theirs.head_token_ids):
        raise GraphFileError("the second graph is damaged (its first tokens are not in it); build it again")
    layout = KeyLayout.of(first.vocabulary_size, first.max_order)
    stream = keys_of(first.trie, layout)
    if not ours.document_boundaries:
        stream = merged(stream, keys_of_ngrams(_boundary(ours, theirs), layout))
    order = first.max_order
    metadata = dataclasses.replace(
        ours,
        num_tokens=ours.num_tokens + theirs.num_tokens,
        num_documents=ours.num_documents + theirs.num_documents,
        head_token_ids=(*ours.head_token_ids, *theirs.head_token_ids)[:order],
        tail_token_ids=(*ours.tail_token_ids, *theirs.tail_token_ids)[-order:],
        corpus_files=ours.corpus_files + theirs.corpus_files,
        skipped=ours.skipped + theirs.skipped,
        calibration=max((ours, theirs), key=_calibration_size).calibration,
    )
    num_records = sum(first.trie.nodes_per_level) + sum(second.trie.nodes_per_level)
    stream = merged(stream, keys_of(second.trie, layout))
    if model is None:
        model = max((first, second), key=_model_size).trie.model
    return _write(stream, layout, metadata, model, checked_output(output), jobs, num_records, progress)


def update_graph(
    path: str | Path,
    corpus: str | Path | Iterable[str | Path],
    output: str | Path | None = None,
    config: GraphConfig | None = None,
    *,
    progress: ProgressCallback | None = None,
) -> NgramGraph:
    """Add files to a graph: count the new files, and merge the two graphs.

    Args:
        path: the graph file.
        corpus: new files, folders, glob patterns.
        output: the new graph file; None replaces the old file when the new one is complete.
        config: build settings; tokenizer, largest order, boundaries and special tokens must be unset or the same as the
            graph's.
        progress: called at every step.

    Raises:
        ConfigError: a setting contradicts the graph, or the tokenizer can't be loaded.
        CorpusError: a file can't be read, or there is no text.
        TokenizerMismatchError: the tokenizer differs from the graph's; it may have changed under the same name.
        GraphError: the graph was pruned.
        GraphFileError: the graph is damaged, or the output can't be written or is being written by another process.
    """
    path = Path(path)
    output = checked_output(path if output is None else output)
    with workspace(output) as folder:
        graph = NgramGraph.load(path, verify=True)
        old = graph.trie.model
        settings = _settings_for(graph.metadata, config or GraphConfig())
        builder = GraphBuilder(**settings | {"neural": settings["neural"] and old is not None})
        new = builder.build(corpus, folder / "new.pkl", progress=progress, calibrate=False, start=old)
        with replacing(output, NgramGraph.load, folder) as merged:
            merge_graphs(graph, new, merged, jobs=num_cores(), progress=progress, model=new.trie.model)
        return NgramGraph.load(output)


def _settings_for(facts: GraphMetadata, config: GraphConfig) -> dict[str, Any]:
    """Return build settings that match a graph; raise an error if the given settings contradict the graph."""
    _require_whole(facts)
    fixed = {name: getattr(facts, name) for name in ("max_order", "document_boundaries", "special_tokens")}
    for name, value in fixed.items():
        if name in config.model_fields_set and getattr(config, name) != value:
            raise ConfigError(
                f"the graph has {name} = {value}, not {getattr(config, name)}; leave it out or build anew"
            )
    is_named = "tokenizer_name" in config.model_fields_set
    tokenizer_name = config.tokenizer_name if is_named else facts.tokenizer.name
    hf_token = config.hf_token.get_secret_value() if config.hf_token else None
    CorpusTokenizer.load(tokenizer_name, hf_token).require(facts.tokenizer)
    return config.model_dump() | fixed | {"tokenizer_name": tokenizer_name}


def prune_graph(
    graph: NgramGraph,
    min_count: int,
    output: str | Path,
    *,
    jobs: int = 1,
    progress: ProgressCallback | None = None,
) -> NgramGraph:
    """Write a graph without the n-grams that occur fewer than ``min_count`` times.

    The remaining counts are exact. Probabilities are relative to the remaining successors, so they still sum to 1 per
    context. Contexts without remaining successors are no longer matched.

    Args:
        graph: the graph to prune.
        min_count: lowest count to keep, at least 2.
        output: the graph file; it may be the file of ``graph``.
        jobs: number of threads.
        progress: called at every step.

    Raises:
        GraphError: nothing would remain, or ``min_count`` is below 2 or below the ``min_count`` of an earlier pruning.
        GraphFileError: the graph is damaged, or the file can't be written.
    """
    check_graph(graph.trie, graph.metadata)
    least = max(2, graph.metadata.min_count)
    if min_count < least:
        raise GraphError(f"pruning to counts of {min_count} removes nothing; take at least {least}")
    highest = int(graph.counts(1).max())
    if min_count > highest:
        raise GraphError(f"no n-gram occurs {min_count} times, the most frequent one {highest}; prune to a lower count")
    layout = KeyLayout.of(graph.vocabulary_size, graph.max_order)
    metadata = dataclasses.replace(graph.metadata, min_count=min_count)
    stream = keys_of(graph.trie, layout, min_count)
    num_records = sum(graph.trie.nodes_per_level)
    return _write(stream, layout, metadata, graph.trie.model, checked_output(output), jobs, num_records, progress)


def _require_alike(first: NgramGraph, second: NgramGraph) -> None:
    ours, theirs = first.metadata, second.metadata
    sizes = (ours.tokenizer.vocabulary_size, theirs.tokenizer.vocabulary_size)
    if ours.tokenizer.sha256 != theirs.tokenizer.sha256 or sizes[0] != sizes[1]:
        raise TokenizerMismatchError(
            f"the graphs have different tokenizers, {ours.tokenizer.name} ({ours.tokenizer.sha256[:12]}) and "
            f"{theirs.tokenizer.name} ({theirs.tokenizer.sha256[:12]}); build both with the same one"
        )
    if ours.max_order != theirs.max_order:
        raise GraphError(
            f"the graphs have orders up to {ours.max_order} and {theirs.max_order}; build both with one graph.max_order"
        )
    if ours.document_boundaries != theirs.document_boundaries:
        raise GraphError("only one of the graphs has document boundaries; build both with them or both without")
    if ours.special_tokens != theirs.special_tokens:
        raise GraphError("only one of the graphs has parsed special tokens; build both with one graph.special_tokens")
    _require_whole(ours)
    _require_whole(theirs)
    num_tokens = ours.num_tokens + theirs.num_tokens
    if num_tokens > MAX_NODES:
        raise GraphError(f"the graphs have {num_tokens} tokens together and a graph holds {MAX_NODES}; keep them apart")


def _require_whole(metadata: GraphMetadata) -> None:
    if metadata.min_count > 1:
        raise GraphError("a pruned graph has lost counts that the result needs; combine first, prune afterwards")


def _calibration_size(facts: GraphMetadata) -> int:
    """Return the size in tokens of a calibrated graph's corpus; 0 if the graph has no calibration."""
    return facts.num_tokens if facts.calibration else 0


def _model_size(graph: NgramGraph) -> int:
    """Return the size in tokens of the graph's corpus if the graph has a neural model; otherwise 0."""
    return graph.metadata.num_tokens if graph.metadata.num_model_words else 0


def _boundary(ours: GraphMetadata, theirs: GraphMetadata) -> dict[Ngram, int]:
    """Return the count changes at the end of the first stream, whose last tokens now have a continuation."""
    tail, head = ours.tail_token_ids, theirs.head_token_ids
    changes: Counter[Ngram] = Counter()
    for start in range(len(tail)):
        changes[tail[start:]] -= 1
        changes[(tail[start:] + head)[: ours.max_order + 1]] += 1
    return dict(changes)


def _write(
    stream: KeyStream,
    layout: KeyLayout,
    metadata: GraphMetadata,
    model: UInt32Array | None,
    output: Path,
    jobs: int,
    num_records: int,
    progress: ProgressCallback | None,
) -> NgramGraph:
    metadata = dataclasses.replace(metadata, built_at=built_at(), library_version=VERSION)
    check_description(metadata)
    watch = BuildReport()

    def report(done: int) -> None:
        if progress is not None:
            progress(BuildProgress("combine", done, 2 * num_records, metadata.num_tokens))

    def checked() -> Iterator[tuple[UInt64Array, Int64Array]]:
        num_keys = 0
        for chunk in stream:
            if int(chunk.weights.min()) < 0:
                raise GraphFileError("the first graph is damaged (its last tokens are not in it); build it again")
            yield chunk.keys, chunk.weights
            num_keys += chunk.weights.size
            report(min(num_keys, num_records))

    def on_level(done: int, total: int) -> None:
        report(num_records + num_records * done // total)

    with workspace(output) as folder:
        with writing(output):
            records = emit_records(checked(), layout, folder / "level")
        assemble_graph(output, folder, [records], metadata, jobs, watch, on_level, model)
    return NgramGraph.load(output)
