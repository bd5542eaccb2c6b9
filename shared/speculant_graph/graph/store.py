"""The graph file: a pickle of a graph, opened without unpickling.

The pickle contains one function call. The call has the same bytes as CPython's pickler writes for protocol 5 (or 4,
which differs in one byte). So ``pickle.load`` makes this call:

.. code-block:: text

    PROTO FRAME                   the frame ends before the block, or before a text of 64 KiB and more
    SHORT_BINUNICODE twice        module and name of the function; STACK_GLOBAL
    SHORT_BINBYTES                SHA-256 of the text
    BINUNICODE                    the text: the graph's description, padded with spaces
    BINBYTES or, from 4 GiB, 8    the block of arrays, at a multiple of 64 bytes, outside of a frame
    FRAME TUPLE3 REDUCE STOP      and a MEMOIZE after every value

A pickle is a program, and anyone may have written the file. The reader of a graph file does not run the pickle.
Instead, the reader lets CPython's pickler write the bytes that must surround the text and the block in the file. A file
with other bytes in these places is refused.
"""

from __future__ import annotations

import dataclasses
import hashlib
import mmap
import os
import pickle
import struct
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from speculant_graph import _core
from speculant_graph.errors import GraphFileError
from speculant_graph.files import replacing, workspace, write_all, writing
from speculant_graph.graph.layout import CHILD, CUMULATIVE, Trie, array_offsets, trie_of
from speculant_graph.graph.metadata import GraphMetadata, description_of, read_description

if TYPE_CHECKING:
    from speculant_graph.graph.ngrams import NgramGraph

MIN_BLOCK_BYTES = 1 << 16
"""Minimum size of the block of arrays, in bytes; a pickler writes smaller blocks in another form."""
_ALIGNMENT = 64
_MAX_TEXT_BYTES = 16 << 20
_CALL_START, _TAIL_BYTES = 11, 15
_DTYPE = "<u4"
_WORD_BYTES = 4


class NewGraphFile:
    """A graph file under construction; its arrays are filled in place."""

    def __init__(self, path: Path, file: BinaryIO, metadata: GraphMetadata) -> None:
        """Lay out the file of a graph with known sizes, and allocate its space on disk.

        Args:
            path: the file's final path.
            file: the file, unbuffered.
            metadata: the metadata.

        Raises:
            GraphFileError: the file can't be written.
        """
        self.path, self.file = path, file
        self._metadata = metadata
        self._sizes = (metadata.nodes_per_level, metadata.tokenizer.vocabulary_size, metadata.num_model_words)
        self._offsets = array_offsets(*self._sizes)
        self._block_bytes = max(_WORD_BYTES * self._offsets[-1], MIN_BLOCK_BYTES)
        before, after = around(file_text(metadata, self._block_bytes), self._block_bytes)
        self._start, self._num_bytes = len(before), len(before) + self._block_bytes + len(after)
        num_levels = len(metadata.nodes_per_level)
        self.level_offsets = tuple(self._start + _WORD_BYTES * offset for offset in self._offsets[:num_levels])
        """Byte offset in the file of each level's records."""
        with writing(path):
            # Allocate the space now: here a full disk is an error, but it kills a process that writes through a memory
            # map.
            os.posix_fallocate(file.fileno(), 0, self._num_bytes)
            file.seek(-len(after), os.SEEK_END)
            write_all(file, after)

    def map(self) -> Trie:
        """Map the arrays into memory for writing."""
        block = self._block(mmap.ACCESS_WRITE)
        return trie_of(np.frombuffer(block, _DTYPE), *self._sizes)

    def finish(self, contexts_per_order: tuple[int, ...], build_seconds: float, jobs: int) -> None:
        """Write the complete metadata and the checksums.

        Args:
            contexts_per_order: see :class:`GraphMetadata`.
            build_seconds: see :class:`GraphMetadata`.
            jobs: number of threads that compute checksums.

        Raises:
            GraphFileError: the file can't be written.
        """
        metadata = dataclasses.replace(
            self._metadata, contexts_per_order=contexts_per_order, build_seconds=build_seconds
        )
        with writing(self.path):
            block = self._block(mmap.ACCESS_READ)
            with ThreadPoolExecutor(jobs) as threads:
                checksums = list(threads.map(_checksum, _spans(block, self._offsets)))
            before, _ = around(file_text(metadata, self._block_bytes, checksums), self._block_bytes)
            self.file.seek(0)
            write_all(self.file, before)

    def _block(self, access: int) -> memoryview:
        view = memoryview(mmap.mmap(self.file.fileno(), self._num_bytes, access=access))
        return view[self._start : self._start + self._block_bytes]


@contextmanager
def new_graph_file(path: Path, folder: Path, metadata: GraphMetadata) -> Iterator[NewGraphFile]:
    """Yield a new graph file in a folder. At the end, move the file to ``path``; after an error, remove the file."""
    with replacing(path, _check, folder) as temporary, temporary.open("xb+", buffering=0) as file:
        yield NewGraphFile(path, file, metadata)


def checked_output(path: str | Path) -> Path:
    """Return the path to write a graph file to: ``path``, or its target if it is a link.

    Raises:
        GraphFileError: the path exists and is not a graph, or its folder does not exist or can't be written.
    """
    path = Path(path)
    path = path.resolve() if path.is_symlink() else path
    if path.exists() and not path.is_file():
        raise GraphFileError(f"{path} exists and is not an ordinary file; choose another path")
    if not path.parent.is_dir():
        raise GraphFileError(f"there is no folder {path.parent} for {path.name}; create it or choose another path")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise GraphFileError(f"folder {path.parent} can't be written; choose another path")
    if path.exists() and path.stat().st_size:
        with writing(path), path.open("rb") as file:
            if not _is_graph(file.read(_CALL_START + len(_call()))):  # a text file of the user, named by mistake
                raise GraphFileError(f"{path} exists and is not a graph; remove it or choose another path")
    return path


def check_description(metadata: GraphMetadata) -> None:
    """Raise an error for metadata that readers would refuse, before n-grams are counted or merged.

    Raises:
        GraphFileError: there are too many files in the corpus, or the calibration is too large.
    """
    file_text(metadata, MIN_BLOCK_BYTES)


def write_pickled(graph: object, path: str | Path) -> None:
    """Pickle a graph to a file, and atomically replace an existing file.

    Raises:
        GraphFileError: the file can't be written.
    """
    path = checked_output(path)
    with workspace(path) as folder, replacing(path, _check, folder) as temporary, temporary.open("xb") as file:
        pickle.dump(graph, file, protocol=5)


def _check(path: Path) -> None:
    """Read a graph file that was just written, and check it."""
    read_graph(path, verify=True, complete=False)


def read_graph(path: str | Path, *, verify: bool, complete: bool) -> tuple[Trie, GraphMetadata]:
    """Open a graph file; see :meth:`NgramGraph.load <speculant_graph.graph.ngrams.NgramGraph.load>`."""
    text, block = read_container(Path(path))
    trie, metadata = _opened(path, text, block, verify=verify or complete)
    if complete:
        try:
            check_graph(trie, metadata)
        except GraphFileError as error:
            raise GraphFileError(f"{path}: {error}") from error
    return trie, metadata


def check_graph(trie: Trie, metadata: GraphMetadata) -> None:
    """Raise an error for arrays and metadata that no build writes; this takes time linear in their size.

    Raises:
        GraphFileError: the arrays or the metadata are inconsistent.
    """
    damage = _core.find_damage(_core.Trie(trie.words, trie.table), trie.first)
    levels = [trie.level(length) for length in range(1, trie.max_order + 2)]
    if damage is None:
        contexts = tuple(int(np.count_nonzero(np.diff(level[:, CHILD]))) for level in levels[:-1])
        if contexts != metadata.contexts_per_order:
            damage = "the number of contexts in its metadata is wrong"
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
    """Return the arguments of :func:`graph_from_pickle` that restore a graph.

    Protocol 5 does not copy the arrays, unless they are tiny.

    Raises:
        GraphFileError: the description is larger than readers accept.
    """
    words = trie.words
    if words.nbytes < MIN_BLOCK_BYTES:
        words = np.zeros(MIN_BLOCK_BYTES // _WORD_BYTES, _DTYPE)
        words[: trie.words.size] = trie.words
    block = words.data.cast("B").toreadonly()
    offsets = array_offsets(trie.nodes_per_level, trie.vocabulary_size, trie.num_model_words)
    text = file_text(metadata, block.nbytes, [_checksum(span) for span in _spans(block, offsets)])
    return _arguments(text, pickle.PickleBuffer(block) if protocol >= 5 else bytes(block))


def graph_from_pickle(checksum: bytes, description: str, block: Any) -> NgramGraph:
    """Return the graph of a pickle: ``pickle.load`` calls this.

    The name of this function is in every graph file and must not change.

    Args:
        checksum: SHA-256 of the description.
        description: the metadata and the arrays' checksums, as JSON.
        block: the arrays' bytes, in memory.

    Raises:
        GraphFileError: the description or the arrays are damaged.
    """
    from speculant_graph.graph.ngrams import NgramGraph  # late, because that module imports this one

    text = description.encode()
    if hashlib.sha256(text).digest() != checksum:
        raise damaged("the pickle", "its description does not match its checksum")
    return NgramGraph(*_opened("the pickle", text, memoryview(block).toreadonly(), verify=True))


def file_text(metadata: GraphMetadata, block_bytes: int, checksums: Sequence[str] = ()) -> bytes:
    """Return a graph's description, padded with spaces so that the block after it is aligned.

    The size of the description depends neither on the checksums nor on the numbers that are known only at the end of a
    build.

    Raises:
        GraphFileError: the description is larger than readers would accept.
    """
    text = aligned(description_of(metadata, checksums), block_bytes)
    if len(text) > _MAX_TEXT_BYTES:
        raise GraphFileError("the description of the graph is too large for its file; join the corpus into fewer files")
    return text


def aligned(text: bytes, block_bytes: int) -> bytes:
    """Return a text, padded with spaces so that the block after it in the file is aligned."""
    before, _ = around(text, block_bytes)
    return text.ljust(len(text) + -len(before) % _ALIGNMENT)


def around(text: bytes, block_bytes: int, protocol: int = 5) -> tuple[bytes, bytes]:
    """Return the bytes that a pickler writes before the block (including the text), and the bytes after the block.

    Args:
        text: the description, in ASCII.
        block_bytes: size of the block.
        protocol: 4 or 5.
    """
    stand_in = bytes(MIN_BLOCK_BYTES)
    written = pickle.dumps(_Call(_arguments(text, stand_in)), protocol)
    start = written.rindex(stand_in)
    size = b"B" + struct.pack("<I", block_bytes) if block_bytes < 1 << 32 else b"\x8e" + struct.pack("<Q", block_bytes)
    return written[: start - 5] + size, written[start + len(stand_in) :]


class _Call:
    """A stand-in that is pickled like a graph."""

    def __init__(self, arguments: tuple[bytes, str, Any]) -> None:
        self._arguments = arguments

    def __reduce__(self) -> tuple[Callable[..., NgramGraph], tuple[bytes, str, Any]]:
        return graph_from_pickle, self._arguments


def _arguments(text: bytes, block: Any) -> tuple[bytes, str, Any]:
    return hashlib.sha256(text).digest(), text.decode("ascii"), block


@cache
def _call() -> bytes:
    """Return the pickled name of the function that every graph file calls; it is the same in every file."""
    text = b" " * 256
    before, _ = around(text, MIN_BLOCK_BYTES)
    return before[_CALL_START : before.index(b"C\x20" + hashlib.sha256(text).digest())]


def _is_graph(head: bytes) -> bool:
    """Return whether a file that begins with ``head`` is a graph."""
    return head[:1] == b"\x80" and head[_CALL_START:] == _call()


def read_container(path: Path) -> tuple[bytes, memoryview]:
    """Open a graph file, and return its description and its block of arrays. The block is mapped and read on access.

    Raises:
        GraphFileError: the file can't be read, is not a graph file, or is damaged.
    """
    foreign = f"{path} is not a graph file; build one with 'speculant build' or GraphBuilder"
    try:
        with path.open("rb") as file:
            if not os.fstat(file.fileno()).st_size:
                raise GraphFileError(foreign)
            view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise GraphFileError(f"{path} can't be opened ({reason})", fix="check the path of the graph file") from error
    call_end = _CALL_START + len(_call())
    if not _is_graph(bytes(view[:call_end])):
        raise GraphFileError(foreign)
    # After the call come 34 bytes of checksum, a MEMOIZE, 5 bytes of opcode and size, the text, a MEMOIZE, opcode and
    # size.
    text_start = call_end + 40
    text_end = text_start + int.from_bytes(view[text_start - 4 : text_start], "little")
    block_start = text_end + (10 if bytes(view[text_end + 1 : text_end + 2]) == b"\x8e" else 6)
    block_bytes = len(view) - block_start - _TAIL_BYTES
    if view[1] not in (4, 5) or text_end - text_start > _MAX_TEXT_BYTES or block_bytes < MIN_BLOCK_BYTES:
        raise damaged(path, "its length or the bytes around the arrays are wrong")
    text = bytes(view[text_start:text_end])
    found = bytes(view[:block_start]), bytes(view[block_start + block_bytes :])
    if not text.isascii() or found != around(text, block_bytes, view[1]) or block_start % _ALIGNMENT:
        raise damaged(path, "its description does not match its checksum, or the bytes around the arrays are wrong")
    return text, view[block_start : block_start + block_bytes]


def release_pages(trie: Trie) -> None:
    """Remove a mapped graph file from the process's resident memory; later lookups map the needed pages again.

    The file's pages stay in the system's cache for as long as there is room. The function does nothing if the graph was
    not mapped.
    """
    owner: Any = trie.words
    while isinstance(owner, np.ndarray):
        owner = owner.base
    mapping = owner.obj if isinstance(owner, memoryview) else owner
    if isinstance(mapping, mmap.mmap):
        mapping.madvise(mmap.MADV_DONTNEED)


def damaged(path: Path | str, reason: str) -> GraphFileError:
    """Return the error for a damaged graph file."""
    return GraphFileError(f"{path} is damaged ({reason})", fix="copy it or build the graph again")


def _opened(name: str | Path, text: bytes, block: memoryview, *, verify: bool) -> tuple[Trie, GraphMetadata]:
    """Return the trie and the metadata of a graph, from its description and its block."""
    try:
        metadata, checksums = read_description(name, text)
        sizes = (metadata.nodes_per_level, metadata.tokenizer.vocabulary_size, metadata.num_model_words)
        offsets = array_offsets(*sizes)
        if len(checksums) != len(offsets) - 1 or block.nbytes != max(_WORD_BYTES * offsets[-1], MIN_BLOCK_BYTES):
            raise ValueError("size of the arrays")
        trie = trie_of(np.frombuffer(block, _DTYPE), *sizes)
        if trie.model is not None and not _core.is_model(trie.model, trie.vocabulary_size):
            raise ValueError("neural model")
    except (AttributeError, IndexError, KeyError, OverflowError, RecursionError, TypeError, ValueError) as error:
        raise damaged(name, "its description is incomplete or does not fit its arrays") from error
    for index, span in enumerate(_spans(block, offsets) if verify else ()):
        if _checksum(span) != checksums[index]:
            raise damaged(name, f"array {index + 1} of {len(checksums)} does not match its checksum")
    return trie, metadata


def _spans(block: memoryview, offsets: tuple[int, ...]) -> list[memoryview]:
    """Cut a block into its arrays, each with the zeros that pad it."""
    starts = [_WORD_BYTES * offset for offset in offsets[:-1]]
    return [block[start:stop] for start, stop in zip(starts, [*starts[1:], block.nbytes], strict=True)]


def _checksum(data: memoryview) -> str:
    return hashlib.sha256(data).hexdigest()
