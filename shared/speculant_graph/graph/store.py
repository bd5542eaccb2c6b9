"""The graph file: which arrays it has, and how its description is checked."""

from __future__ import annotations

import base64
import dataclasses
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, get_args

import numpy as np

from speculant_graph.corpus.files import CorpusFile
from speculant_graph.errors import GraphFileError
from speculant_graph.graph.check import check_graph
from speculant_graph.graph.container import (
    Container,
    NewContainer,
    damaged,
    document_room,
    read_container,
    verify_arrays,
    write_all,
    writing,
)
from speculant_graph.graph.layout import MAX_VOCABULARY, Trie, array_words, trie_of
from speculant_graph.graph.metadata import FORMAT_VERSION, MAX_CALIBRATION_BYTES, GraphMetadata
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.graph.workspace import checked_output, workspace
from speculant_graph.types import Fingerprint, SpecialTokensName

Value = TypeVar("Value")

_DTYPE = "<u4"
_WORD_BYTES = 4
_MAX_ORDER = 10


class NewGraphFile:
    """A graph file that is being written; its arrays are filled in place."""

    def __init__(self, path: Path, folder: Path, metadata: GraphMetadata) -> None:
        """Lay out the file of a graph whose sizes are known.

        Args:
            path: where it will be.
            folder: where it is written, on the same file system.
            metadata: what it says of itself.

        Raises:
            GraphFileError: the file can't be written.
        """
        words = array_words(metadata.nodes_per_level, metadata.tokenizer.vocabulary_size)
        room = document_room(path, _document(metadata))
        self.container = NewContainer(path, folder, FORMAT_VERSION, [_WORD_BYTES * size for size in words], room)
        self._metadata = metadata

    @property
    def level_offsets(self) -> tuple[int, ...]:
        """Where the records of each level begin, in bytes."""
        return self.container.offsets[:-1]

    def map(self) -> Trie:
        """Map the arrays, writable."""
        block = np.frombuffer(self.container.map(), _DTYPE)
        offsets = tuple(offset // _WORD_BYTES for offset in self.container.offsets)
        metadata = self._metadata
        return trie_of(block, offsets, metadata.nodes_per_level, metadata.tokenizer.vocabulary_size)

    def finish(self, contexts_per_order: tuple[int, ...], build_seconds: float, jobs: int) -> None:
        """Add what is known now, bring the file to disk and put it in its place.

        Raises:
            GraphFileError: that fails.
        """
        metadata = dataclasses.replace(
            self._metadata, contexts_per_order=contexts_per_order, build_seconds=build_seconds
        )
        self.container.finish(_document(metadata), jobs)


@contextmanager
def new_graph_file(path: Path, folder: Path, metadata: GraphMetadata) -> Iterator[NewGraphFile]:
    """Begin a graph file in a folder; unless it is finished inside the block, nothing remains of it."""
    file = NewGraphFile(path, folder, metadata)
    with file.container:
        yield file


def check_description(path: Path, metadata: GraphMetadata) -> None:
    """Refuse metadata that readers would refuse, before the work is done.

    Raises:
        GraphFileError: there are too many files in the corpus, or the calibration is too large.
    """
    document_room(path, _document(metadata))


def save_graph(graph: NgramGraph, path: str | Path) -> None:
    """Write a graph to one file, whole or not at all; a file that was there is replaced.

    Raises:
        GraphFileError: the file can't be written.
    """
    path = checked_output(path)
    with workspace(path) as folder, new_graph_file(path, folder, graph.metadata) as file:
        trie = graph.trie
        arrays = [trie.level(length) for length in range(1, trie.max_order + 2)] + [trie.first]
        with writing(path):
            for offset, array in zip(file.container.offsets, arrays, strict=True):
                file.container.file.seek(offset)
                write_all(file.container.file, array)
        file.finish(graph.metadata.contexts_per_order, graph.metadata.build_seconds, jobs=1)


def load_graph(path: str | Path, *, verify: bool = False, on_bytes: Callable[[int], None] | None = None) -> NgramGraph:
    """Open a graph file; its arrays stay on disk, mapped read-only, and all processes share them.

    A file from anywhere is safe to open: nothing in it is executed, and lookups check every index that they take
    from it. Publish new graphs by renaming, never by writing into a file that is open.

    Args:
        path: the file.
        verify: read all arrays and compare their checksums, which also brings the file into memory.
        on_bytes: told the bytes that were verified.

    Raises:
        GraphFileError: the file is no graph, damaged, or of a version that this release can't read.
    """
    path = Path(path)
    container = read_container(path, FORMAT_VERSION)
    try:
        metadata = _metadata(container)
        trie = _trie(container, metadata)
    except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise damaged(path, "its description is incomplete") from error
    if verify:
        verify_arrays(path, container, on_bytes)
    return NgramGraph(trie, metadata)


def verify_graph(path: str | Path, on_bytes: Callable[[int], None] | None = None) -> NgramGraph:
    """Open a graph file and check it completely: checksums of all arrays, and that no build wrote anything else.

    Args:
        path: the file.
        on_bytes: told the bytes whose checksums are right.

    Raises:
        GraphFileError: something is wrong with it.
    """
    graph = load_graph(path, verify=True, on_bytes=on_bytes)
    try:
        check_graph(graph.trie, graph.metadata)
    except GraphFileError as error:
        raise GraphFileError(f"{path}: {error}") from error
    return graph


def _document(metadata: GraphMetadata) -> dict[str, Any]:
    if len(metadata.calibration) > MAX_CALIBRATION_BYTES:
        raise GraphFileError(
            f"the calibration has {len(metadata.calibration)} bytes and a graph file holds {MAX_CALIBRATION_BYTES}; "
            "make it smaller or build without one"
        )
    packed = dataclasses.asdict(metadata)
    # As text, which every reader of this format takes; those that know no calibration leave it alone.
    packed["calibration"] = base64.b64encode(metadata.calibration).decode()
    files = packed.pop("corpus_files")
    packed = {name: list(value) if isinstance(value, tuple) else value for name, value in packed.items()}
    # One list per column: a corpus of 100 000 files stays below the reader's limit of opcodes.
    packed["corpus_files"] = {
        field.name: [file[field.name] for file in files] for field in dataclasses.fields(CorpusFile)
    }
    words = array_words(metadata.nodes_per_level, metadata.tokenizer.vocabulary_size)
    names = [*(f"level_{length}" for length in range(1, len(words))), "first"]
    arrays = {
        name: {"dtype": _DTYPE, "size": size, "data": pickle.PickleBuffer(b"")}
        for name, size in zip(names, words, strict=True)
    }
    return {"metadata": packed, "arrays": arrays}


def _metadata(container: Container) -> GraphMetadata:
    document: Any = container.document
    packed = document["metadata"]
    corpus, tokenizer = packed["corpus_files"], packed["tokenizer"]
    columns = [
        [_checked(value, kind) for value in corpus[name]]
        for name, kind in (("name", str), ("size_bytes", int), ("sha256", str))
    ]
    if len({len(column) for column in columns}) != 1:
        raise ValueError("number of files")
    metadata = GraphMetadata(
        format_version=FORMAT_VERSION,
        tokenizer=Fingerprint(
            name=_checked(tokenizer["name"], str),
            sha256=_checked(tokenizer["sha256"], str),
            vocabulary_size=_checked(tokenizer["vocabulary_size"], int),
        ),
        tokenizer_revision=_checked(packed["tokenizer_revision"], str),
        max_order=_checked(packed["max_order"], int),
        num_tokens=_checked(packed["num_tokens"], int),
        num_documents=_checked(packed["num_documents"], int),
        document_boundaries=_checked(packed["document_boundaries"], bool),
        min_count=_checked(packed["min_count"], int),
        nodes_per_level=_integers(packed["nodes_per_level"]),
        contexts_per_order=_integers(packed["contexts_per_order"]),
        head_token_ids=_integers(packed["head_token_ids"]),
        tail_token_ids=_integers(packed["tail_token_ids"]),
        built_at=_checked(packed["built_at"], str),
        build_seconds=_checked(packed["build_seconds"], float),
        corpus_files=tuple(map(CorpusFile, *columns)),
        library_version=_checked(packed["library_version"], str),
        calibration=_calibration(packed.get("calibration", "")),
        special_tokens=packed.get("special_tokens", "text"),  # all were, before there was a choice
    )
    if metadata.special_tokens not in get_args(SpecialTokensName):
        raise ValueError("special tokens")
    order = metadata.max_order
    if not 1 <= order <= _MAX_ORDER or metadata.min_count < 1 or min(metadata.nodes_per_level) < 0:
        raise ValueError("bounds")
    if len(metadata.nodes_per_level) != order + 1 or len(metadata.contexts_per_order) != order:
        raise ValueError("number of levels")
    if len(metadata.head_token_ids) != len(metadata.tail_token_ids) or len(metadata.head_token_ids) > order:
        raise ValueError("number of seam tokens")
    known = range(metadata.tokenizer.vocabulary_size)
    if not all(token_id in known for token_id in metadata.head_token_ids + metadata.tail_token_ids):
        raise ValueError("seam tokens")
    if metadata.num_tokens < 1 or metadata.num_documents < 0 or min(metadata.contexts_per_order) < 0:
        raise ValueError("number of tokens")
    if not 0 < metadata.tokenizer.vocabulary_size <= MAX_VOCABULARY:
        raise ValueError("vocabulary")
    return metadata


def _trie(container: Container, metadata: GraphMetadata) -> Trie:
    document: Any = container.document
    vocabulary_size = metadata.tokenizer.vocabulary_size
    sizes = array_words(metadata.nodes_per_level, vocabulary_size)
    entries = document["arrays"]
    names = [*(f"level_{length}" for length in range(1, len(sizes))), "first"]
    if list(entries) != names or len(container.arrays) != len(names):
        raise ValueError("names of arrays")
    for entry, size, array in zip(entries.values(), sizes, container.arrays, strict=True):
        if entry["dtype"] != _DTYPE or entry["size"] != size or array.nbytes != size * _WORD_BYTES:
            raise ValueError("size of an array")
        if type(entry["data"]) is not memoryview:
            raise TypeError("data of an array")
    words = np.frombuffer(container.view[: len(container.view) // _WORD_BYTES * _WORD_BYTES], _DTYPE)
    offsets = tuple(offset // _WORD_BYTES for offset in container.offsets)
    return trie_of(words, offsets, metadata.nodes_per_level, vocabulary_size)


def _calibration(text: Any) -> bytes:
    calibration = base64.b64decode(_checked(text, str), validate=True)
    if len(calibration) > MAX_CALIBRATION_BYTES:
        raise ValueError("size of the calibration")
    return calibration


def _integers(values: Any) -> tuple[int, ...]:
    return tuple(_checked(value, int) for value in _checked(values, list))


def _checked(value: Any, kind: type[Value]) -> Value:
    if type(value) is not kind:
        raise TypeError(f"{kind.__name__} expected")
    return value
