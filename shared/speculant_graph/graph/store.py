"""The graph file: a pickle of a graph, which is opened without being unpickled."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import mmap
import os
import pickle
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import TypeAdapter

from speculant_graph import _core
from speculant_graph.errors import GraphFileError
from speculant_graph.graph.container import (
    MAX_TEXT_BYTES,
    MIN_BLOCK_BYTES,
    NewFile,
    aligned_text_bytes,
    before_and_after,
    damaged,
    read_container,
    writing,
)
from speculant_graph.graph.layout import CHILD, CUMULATIVE, MAX_VOCABULARY, Trie, array_offsets, trie_of
from speculant_graph.graph.metadata import FORMAT_VERSION, MAX_CALIBRATION_BYTES, GraphMetadata
from speculant_graph.graph.workspace import checked_output, workspace

if TYPE_CHECKING:
    from speculant_graph.graph.ngrams import NgramGraph

_DTYPE = "<u4"
_WORD_BYTES = 4
_METADATA, _CHECKSUMS = TypeAdapter(GraphMetadata), TypeAdapter(tuple[str, ...])
_SLACK = 256
"""Bytes that numbers known late may take beyond those that stand for them."""


class NewGraphFile:
    """A graph file that is being written; its arrays are filled in place."""

    def __init__(self, new: NewFile, metadata: GraphMetadata) -> None:
        """Lay out the file of a graph whose sizes are known, and take its space on disk.

        Args:
            new: the file.
            metadata: what the file states of itself.

        Raises:
            GraphFileError: the file can't be written.
        """
        self.path, self.file = new.path, new.file
        self._new = new
        self._metadata = metadata
        self._offsets = array_offsets(metadata.nodes_per_level, metadata.tokenizer.vocabulary_size)
        self._block_bytes = max(_WORD_BYTES * self._offsets[-1], MIN_BLOCK_BYTES)
        self._before, after = before_and_after(_description(metadata, self._block_bytes), self._block_bytes)
        self._num_bytes = len(self._before) + self._block_bytes + len(after)
        with writing(self.path):
            # Space is taken now: a full disk is an error here, but kills a process that writes through a map.
            os.posix_fallocate(self.file.fileno(), 0, self._num_bytes)
            self.file.seek(-len(after), os.SEEK_END)
            new.write(after)

    @property
    def level_offsets(self) -> tuple[int, ...]:
        """Where the records of each level begin, in bytes."""
        return tuple(len(self._before) + _WORD_BYTES * offset for offset in self._offsets[:-2])

    def map(self) -> Trie:
        """Map the arrays, writable."""
        block = self._block(mmap.ACCESS_WRITE)
        metadata = self._metadata
        return trie_of(np.frombuffer(block, _DTYPE), metadata.nodes_per_level, metadata.tokenizer.vocabulary_size)

    def finish(self, contexts_per_order: tuple[int, ...], build_seconds: float, jobs: int) -> None:
        """Add what is known now, bring the file to disk and rename it to its path.

        Args:
            contexts_per_order: see :class:`GraphMetadata`.
            build_seconds: see there.
            jobs: threads that compute checksums.

        Raises:
            GraphFileError: that fails.
        """
        metadata = dataclasses.replace(
            self._metadata, contexts_per_order=contexts_per_order, build_seconds=build_seconds
        )
        with writing(self.path):
            block = self._block(mmap.ACCESS_READ)
            with ThreadPoolExecutor(jobs) as threads:
                checksums = list(threads.map(_checksum, _spans(block, self._offsets)))
            before, _ = before_and_after(_description(metadata, self._block_bytes, checksums), self._block_bytes)
            self.file.seek(0)
            self._new.write(before)
        self._new.publish()

    def _block(self, access: int) -> memoryview:
        view = memoryview(mmap.mmap(self.file.fileno(), self._num_bytes, access=access))
        return view[len(self._before) : len(self._before) + self._block_bytes]


@contextmanager
def new_graph_file(path: Path, folder: Path, metadata: GraphMetadata) -> Iterator[NewGraphFile]:
    """Begin a graph file in a folder; unless it is finished inside the block, nothing remains of it."""
    with NewFile(path, folder) as new:
        yield NewGraphFile(new, metadata)


def check_description(metadata: GraphMetadata) -> None:
    """Refuse metadata that readers would refuse, before the work is done.

    Raises:
        GraphFileError: there are too many files in the corpus, or the calibration is too large.
    """
    _description(metadata, MIN_BLOCK_BYTES)


def write_pickled(graph: object, path: str | Path) -> None:
    """Pickle a graph to a file, whole or not at all; a file that was there is replaced.

    Raises:
        GraphFileError: the file can't be written.
    """
    path = checked_output(path)
    with workspace(path) as folder, NewFile(path, folder) as new:
        with writing(path):
            pickle.dump(graph, new, protocol=5)
        new.publish()


def read_graph(path: str | Path, *, verify: bool, complete: bool) -> tuple[Trie, GraphMetadata]:
    """Open a graph file; see :meth:`NgramGraph.load <speculant_graph.graph.ngrams.NgramGraph.load>`."""
    container = read_container(Path(path))
    trie, metadata, checksums = _opened(path, container.text, container.block)
    if verify or complete:
        _verify(path, container.block, trie, checksums)
    if complete:
        try:
            check_graph(trie, metadata)
        except GraphFileError as error:
            raise GraphFileError(f"{path}: {error}") from error
    return trie, metadata


def check_graph(trie: Trie, metadata: GraphMetadata) -> None:
    """Refuse arrays and metadata that no build writes, in time linear in their size.

    Raises:
        GraphFileError: something does not fit together.
    """
    damage = _core.find_damage(_core.Trie(trie.words, trie.table), trie.first)
    levels = [trie.level(length) for length in range(1, trie.max_order + 2)]
    if damage is None:
        contexts = tuple(int(np.count_nonzero(np.diff(level[:, CHILD]))) for level in levels[:-1])
        if contexts != metadata.contexts_per_order:
            damage = "it states another number of contexts"
        elif not _adds_up([int(level[-1, CUMULATIVE]) for level in levels], metadata):
            damage = "its counts do not add up to its tokens"
    if damage is not None:
        raise GraphFileError(f"the graph is damaged ({damage}); copy its file or build it again")


def _adds_up(totals: list[int], metadata: GraphMetadata) -> bool:
    if metadata.min_count > 1:
        return max(totals) <= metadata.num_tokens
    if metadata.document_boundaries:
        return totals[0] == metadata.num_tokens and totals == sorted(totals, reverse=True)
    return totals == [max(0, metadata.num_tokens - shorter) for shorter in range(len(totals))]


def pickled(trie: Trie, metadata: GraphMetadata, protocol: int) -> tuple[bytes, str, Any]:
    """Return the arguments of :func:`graph_from_pickle` that make a graph again.

    With protocol 5 the arrays are not copied, unless they are tiny.

    Raises:
        GraphFileError: the description is larger than readers accept.
    """
    words = trie.words
    if words.nbytes < MIN_BLOCK_BYTES:
        words = np.zeros(MIN_BLOCK_BYTES // _WORD_BYTES, _DTYPE)
        words[: trie.words.size] = trie.words
    block = words.data.cast("B").toreadonly()
    offsets = array_offsets(trie.nodes_per_level, trie.vocabulary_size)
    text = _description(metadata, block.nbytes, [_checksum(span) for span in _spans(block, offsets)])
    data = pickle.PickleBuffer(block) if protocol >= 5 else bytes(block)
    return hashlib.sha256(text).digest(), text.decode("ascii"), data


def graph_from_pickle(checksum: bytes, description: str, block: Any) -> NgramGraph:
    """Return the graph of a pickle: ``pickle.load`` calls this. Its name is in every graph file and must not change.

    Args:
        checksum: SHA-256 of the description.
        description: the metadata and the arrays' checksums, as JSON.
        block: the arrays' bytes, in memory.

    Raises:
        GraphFileError: description or arrays are damaged.
    """
    from speculant_graph.graph.ngrams import NgramGraph  # what pickles is above what it is stored as

    text = description.encode()
    if hashlib.sha256(text).digest() != checksum:
        raise damaged("the pickle", "its description has another checksum")
    view = memoryview(block).toreadonly()
    trie, metadata, checksums = _opened("the pickle", text, view)
    _verify("the pickle", view, trie, checksums)
    return NgramGraph(trie, metadata)


def _description(metadata: GraphMetadata, block_bytes: int, checksums: Sequence[str] = ()) -> bytes:
    """Return what a file states of its graph, as JSON with spaces at the end.

    Its size does not depend on the numbers that are known last, nor on the checksums.
    """
    if len(metadata.calibration) > MAX_CALIBRATION_BYTES:
        raise GraphFileError(
            f"the calibration has {len(metadata.calibration)} bytes and a graph file holds {MAX_CALIBRATION_BYTES}; "
            "make it smaller or build without one"
        )
    packed = _METADATA.dump_python(metadata, mode="json") | {"format_version": FORMAT_VERSION}
    packed["corpus_files"] = [dataclasses.astuple(file) for file in metadata.corpus_files]
    no_checksums = ["0" * 64] * (len(metadata.nodes_per_level) + 1)
    late = {"contexts_per_order": (), "build_seconds": 0.0, "array_sha256": no_checksums}
    size = aligned_text_bytes(len(_json(packed | late)) + _SLACK, block_bytes)
    text = _json(packed | {"array_sha256": checksums or no_checksums})
    if size > MAX_TEXT_BYTES or len(text) > size:
        raise GraphFileError("the description of the graph is too large for its file; join the corpus into fewer files")
    return text.ljust(size)


def _json(value: object) -> bytes:
    return json.dumps(value).encode("ascii")


def _opened(name: str | Path, text: bytes, block: memoryview) -> tuple[Trie, GraphMetadata, tuple[str, ...]]:
    """Return the graph of a description and a block, and the checksums that its arrays should have."""
    try:
        packed = json.loads(text.decode("ascii"))
        version = packed["format_version"]
        if type(version) is not int:
            raise ValueError("version")
        if version != FORMAT_VERSION:
            raise GraphFileError(
                f"{name} has file format {version} and this release reads {FORMAT_VERSION}; "
                "update speculant-graph or build the graph again"
            )
        metadata = _metadata(packed)
        checksums = _CHECKSUMS.validate_json(_json(packed["array_sha256"]), strict=True)
        vocabulary_size = metadata.tokenizer.vocabulary_size
        offsets = array_offsets(metadata.nodes_per_level, vocabulary_size)
        if len(checksums) != len(offsets) - 1 or block.nbytes != max(_WORD_BYTES * offsets[-1], MIN_BLOCK_BYTES):
            raise ValueError("size of the arrays")
        trie = trie_of(np.frombuffer(block, _DTYPE), metadata.nodes_per_level, vocabulary_size)
    except (AttributeError, IndexError, KeyError, OverflowError, RecursionError, TypeError, ValueError) as error:
        raise damaged(name, "its description is incomplete or does not fit its arrays") from error
    return trie, metadata, checksums


def _verify(path: str | Path, block: memoryview, trie: Trie, checksums: Sequence[str]) -> None:
    spans = _spans(block, array_offsets(trie.nodes_per_level, trie.vocabulary_size))
    for index, (span, checksum) in enumerate(zip(spans, checksums, strict=True), start=1):
        if _checksum(span) != checksum:
            raise damaged(path, f"array {index} of {len(checksums)} has another checksum")


def _spans(block: memoryview, offsets: tuple[int, ...]) -> list[memoryview]:
    """Cut a block into its arrays, each with the zeros behind it."""
    starts = [_WORD_BYTES * offset for offset in offsets[:-1]]
    return [block[start:stop] for start, stop in zip(starts, [*starts[1:], block.nbytes], strict=True)]


def _checksum(data: memoryview) -> str:
    return hashlib.sha256(data).hexdigest()


def _metadata(packed: dict[str, Any]) -> GraphMetadata:
    packed["corpus_files"] = [
        {"name": name, "size_bytes": size_bytes, "sha256": sha256}
        for name, size_bytes, sha256 in packed["corpus_files"]
    ]
    fields = {field.name: packed[field.name] for field in dataclasses.fields(GraphMetadata)}
    metadata = _METADATA.validate_json(_json(fields), strict=True)
    order, vocabulary_size = metadata.max_order, metadata.tokenizer.vocabulary_size
    if len(metadata.nodes_per_level) != order + 1 or len(metadata.contexts_per_order) != order:
        raise ValueError("number of levels")
    if len(metadata.head_token_ids) != len(metadata.tail_token_ids) or len(metadata.head_token_ids) > order:
        raise ValueError("number of boundary tokens")
    known = range(vocabulary_size)
    if not all(token_id in known for token_id in metadata.head_token_ids + metadata.tail_token_ids):
        raise ValueError("boundary tokens")
    if not 0 < vocabulary_size <= MAX_VOCABULARY:
        raise ValueError("vocabulary")
    return metadata
