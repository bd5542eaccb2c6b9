"""Saves and opens graphs: what of a graph goes where in the file."""

from __future__ import annotations

import dataclasses
import pickle
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from speculant_graph.errors import GraphFileError
from speculant_graph.graph.container import (
    Container,
    damaged,
    read_container,
    verify_buffers,
    write_container,
)
from speculant_graph.graph.metadata import FORMAT_VERSION, CorpusFile, GraphMetadata
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.graph.trie import Trie, UInt32Array, check_trie
from speculant_graph.types import Fingerprint

Value = TypeVar("Value")

_DTYPE = "<u4"
_COLUMNS = tuple(field.name for field in dataclasses.fields(Trie))


def save_graph(graph: NgramGraph, path: str | Path) -> None:
    """Write a graph to one file, whole or not at all; a file that was there is replaced.

    Raises:
        GraphFileError: the file can't be written.
    """
    columns = {name: [_packed(array) for array in getattr(graph.trie, name)] for name in _COLUMNS}
    write_container(Path(path), FORMAT_VERSION, {"metadata": _packed_metadata(graph.metadata), "arrays": columns})


def load_graph(path: str | Path, *, verify: bool = False) -> NgramGraph:
    """Open a graph file; its arrays stay on disk, mapped read-only.

    A file from anywhere is safe to open: nothing in it is executed, and arrays on which a lookup could leave
    its bounds are refused. Publish new graphs by renaming, never by writing into a file that is open.

    Args:
        path: the file.
        verify: compare the checksums of all arrays, too.

    Raises:
        GraphFileError: the file is no graph, damaged, or of a version that this release can't read.
    """
    path = Path(path)
    container = read_container(path, FORMAT_VERSION)
    if verify:
        verify_buffers(path, container)
    try:
        metadata, trie = _unpacked(container)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise damaged(path, "its description is incomplete") from error
    try:
        check_trie(trie, metadata.tokenizer.vocabulary_size)
    except GraphFileError as error:
        raise damaged(path, str(error)) from error
    return NgramGraph(trie, metadata)


def verify_graph(path: str | Path) -> None:
    """Check a graph file completely, checksums of all arrays included.

    Raises:
        GraphFileError: something is wrong with it.
    """
    load_graph(path, verify=True)


def _packed(array: UInt32Array) -> dict[str, Any]:
    raw = np.ascontiguousarray(array, dtype=_DTYPE)
    return {"dtype": _DTYPE, "shape": [raw.size], "data": pickle.PickleBuffer(raw.data)}


def _packed_metadata(metadata: GraphMetadata) -> dict[str, Any]:
    packed = dataclasses.asdict(metadata)
    files = packed.pop("corpus_files")
    # One list per column: a corpus of 100 000 files stays below the reader's limit of opcodes.
    packed["corpus_files"] = {
        field.name: [file[field.name] for file in files] for field in dataclasses.fields(CorpusFile)
    }
    return packed | {name: list(value) for name, value in packed.items() if isinstance(value, tuple)}


def _unpacked(container: Container) -> tuple[GraphMetadata, Trie]:
    document: Any = container.document
    packed = dict(document["metadata"])
    corpus = packed.pop("corpus_files")
    names = [_checked(name, str) for name in corpus["name"]]
    sizes = [_checked(size, int) for size in corpus["size_bytes"]]
    digests = [_checked(digest, str) for digest in corpus["sha256"]]
    tokenizer = packed.pop("tokenizer")
    metadata = GraphMetadata(
        format_version=FORMAT_VERSION,
        tokenizer=Fingerprint(
            name=_checked(tokenizer["name"], str),
            sha256=_checked(tokenizer["sha256"], str),
            vocabulary_size=_checked(tokenizer["vocabulary_size"], int),
        ),
        max_order=_checked(packed["max_order"], int),
        num_tokens=_checked(packed["num_tokens"], int),
        contexts_per_order=tuple(_checked(number, int) for number in packed["contexts_per_order"]),
        transitions_per_order=tuple(_checked(number, int) for number in packed["transitions_per_order"]),
        built_at=_checked(packed["built_at"], str),
        corpus_files=tuple(map(CorpusFile, names, sizes, digests)),
        library_version=_checked(packed["library_version"], str),
    )
    order = metadata.max_order
    columns = {name: tuple(_array(entry) for entry in document["arrays"][name]) for name in _COLUMNS}
    trie = Trie(**columns)
    if order < 1 or [len(column) for column in columns.values()] != [order + 1, order + 1, order, order]:
        raise ValueError("number of levels")
    if not len(metadata.contexts_per_order) == len(metadata.transitions_per_order) == order:
        raise ValueError("number of orders")
    if not len(names) == len(sizes) == len(digests):
        raise ValueError("number of files")
    return metadata, trie


def _array(entry: dict[str, Any]) -> UInt32Array:
    view = _checked(entry["data"], memoryview)
    if entry["dtype"] != _DTYPE or entry["shape"] != [view.nbytes // 4]:
        raise ValueError("array type")
    return np.frombuffer(view, dtype=_DTYPE)


def _checked(value: Any, kind: type[Value]) -> Value:
    if type(value) is not kind:
        raise TypeError(f"{kind.__name__} expected")
    return value
