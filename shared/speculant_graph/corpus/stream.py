"""Files to one stream of token ids on disk."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from speculant_graph.config import GraphConfig
from speculant_graph.corpus.documents import Document, read_documents
from speculant_graph.corpus.files import CorpusFile, SkippedFile
from speculant_graph.corpus.sample import sample_texts
from speculant_graph.corpus.source import Source
from speculant_graph.corpus.text import cut_text
from speculant_graph.corpus.tokenize import CorpusTokenizer
from speculant_graph.corpus.writer import Batch, StreamWriter
from speculant_graph.errors import CorpusError

DOCUMENT_SEPARATOR = 0xFFFF_FFFF
"""Stands between documents in a stream; no tokenizer has this id."""
_SEPARATOR = np.array([DOCUMENT_SEPARATOR], np.uint32)

# Small pieces keep all threads busy to the end of a file, and the memory small.
_PIECE_CHARACTERS = 1 << 16
_WHOLE = 1 << 62
# A generous bound of what a character in flight takes, as text and as ids, so that text is a small part of a build.
_BYTES_PER_CHARACTER = 32
# The regular expressions of the tokenizers library give up a little beyond, by a panic.
_MOST_BLANKS = 8_000_000
# A vocabulary of 200,000 tokens takes 1.5 s to make and prove the fast encoder, which one thread wins back on 9 MB of
# text, and two threads on 20 MB.
_FAST_FROM_BYTES = 16_000_000


@dataclass(frozen=True, slots=True)
class TokenStream:
    """A corpus as token ids."""

    path: Path
    """File of little-endian uint32 ids of all documents, one after another, and separators if there are any."""
    num_tokens: int
    """Ids in the file, separators not counted."""
    num_documents: int
    """Documents with tokens."""
    files: tuple[CorpusFile, ...]
    """Files that were read, in order, those without text included."""
    skipped: tuple[SkippedFile, ...]
    """Files that were left out."""


def write_token_stream(
    tokenizer: CorpusTokenizer,
    files: Sequence[Path],
    path: Path,
    config: GraphConfig,
    on_progress: Callable[[int, int], None] | None = None,
) -> TokenStream:
    """Write the token ids of all documents of all files, one after another, to a file.

    Each text is wrapped in the tokenizer's BOS and EOS tokens, if it has them; token ids are taken as they are.
    Documents with neither are left out. The stream is the same whatever ``jobs`` and ``chunk_size`` are.

    About ``jobs × chunk_size`` characters are held at a time. Some things are held whole, however large they are: a
    text without a point to cut at, such as one huge line of base64; a JSON record; a PDF, both its file and its text;
    and every document, if the tokenizer is one whose texts can't be cut (:attr:`CorpusTokenizer.is_cuttable`).

    Args:
        tokenizer: makes the ids; it is sped up on the way if the corpus is large enough to gain by it.
        files: what to read, in this order.
        path: the file to write; it is removed if anything is raised.
        config: ``chunk_size``, ``text_field``, ``token_ids_field``, ``on_error``,
            ``document_boundaries`` (one :data:`DOCUMENT_SEPARATOR` between documents) and ``jobs`` are used; what
            special tokens are is the tokenizer's.
        on_progress: called with the bytes of files whose tokens are written, and the number of these tokens.

    Raises:
        CorpusError: a file can't be read and ``on_error`` is "fail", there is no text at all, or the tokenizer makes
            nothing of it.
        GraphError: the stream can't be written.
        ModuleNotFoundError: a module that is needed is not installed.
    """
    if _is_fast(tokenizer) or _is_large(files):
        tokenizer.speed_up(sample_texts(files))
    num_threads = config.jobs or os.cpu_count() or 1
    with StreamWriter(
        path,
        tokenizer.encode_array,
        num_threads=num_threads,
        most_in_flight=min(config.chunk_size * num_threads, config.memory // _BYTES_PER_CHARACTER),
        on_progress=on_progress,
    ) as writer:
        return _Corpus(tokenizer, config, writer).write(files, path)


def _is_fast(tokenizer: CorpusTokenizer) -> bool:
    return tokenizer.encoder == "tiktoken"


def _is_large(files: Sequence[Path]) -> bool:
    # A pipe may bring anything: with a short one a second is lost, with a long one it would be most of the time.
    sizes = (os.path.getsize(file) if os.path.isfile(file) else _FAST_FROM_BYTES for file in files)
    return sum(sizes) >= _FAST_FROM_BYTES


class _Corpus:
    """The reading side: files to batches, in order."""

    def __init__(self, tokenizer: CorpusTokenizer, config: GraphConfig, writer: StreamWriter) -> None:
        self._tokenizer = tokenizer
        self._config = config
        self._writer = writer
        self._piece_characters = min(_PIECE_CHARACTERS, config.chunk_size) if tokenizer.is_cuttable else _WHOLE
        self._num_documents = 0
        self._finished_bytes = 0
        self._is_first_batch = True

    def write(self, files: Sequence[Path], path: Path) -> TokenStream:
        described: list[CorpusFile] = []
        skipped: list[SkippedFile] = []
        for file in files:
            source = Source(file)
            num_documents = self._num_documents
            self._writer.begin_file()
            try:
                for batch in self._batches(source):
                    self._writer.submit(batch)
            except CorpusError as error:
                if self._config.on_error == "fail":
                    raise
                self._writer.drop_file()
                self._num_documents = num_documents
                skipped.append(SkippedFile(str(file), str(error).removeprefix(f"{source.label}: ")))
                self._finished_bytes += max(source.num_bytes, os.path.getsize(file) if os.path.isfile(file) else 0)
            else:
                described.append(source.describe())
                self._finished_bytes += source.num_bytes
        self._writer.finish(self._finished_bytes)
        if self._writer.num_tokens == 0:
            raise self._empty(files, skipped)
        return TokenStream(path, self._writer.num_tokens, self._num_documents, tuple(described), tuple(skipped))

    def _empty(self, files: Sequence[Path], skipped: Sequence[SkippedFile]) -> CorpusError:
        if self._num_documents:
            return CorpusError(
                f"tokenizer {self._tokenizer.fingerprint.name} makes no tokens of this text; "
                "set --graph.tokenizer-name to another, or name other files"
            )
        num_files = len(files)
        found = f"{files[0]} holds no text" if num_files == 1 else f"none of {num_files} files holds text"
        if skipped:
            left_out = "it was" if num_files == 1 else "1 was" if len(skipped) == 1 else f"{len(skipped)} were"
            found += f", {left_out} left out: {skipped[0].name}: {skipped[0].reason}"
        return CorpusError(f"{found}; name files that do")

    def _batches(self, source: Source) -> Iterator[Batch]:
        batch = Batch()
        for document in documents_of(source, self._config, self._tokenizer):
            for item in self._items(document):
                batch.add(item)
                batch.num_separators += item is _SEPARATOR
                if batch.size >= min(_PIECE_CHARACTERS, self._config.chunk_size):
                    yield self._closed(batch, source)
                    batch = Batch()
        yield self._closed(batch, source)

    def _closed(self, batch: Batch, source: Source) -> Batch:
        batch.bytes_read = self._finished_bytes + source.num_bytes
        if self._is_first_batch and any(batch.texts()) and _is_fast(self._tokenizer):
            self._is_first_batch = False
            # Nothing is written yet, and of standard input this is all that can be tried before.
            self._tokenizer.speed_up(text[:_PIECE_CHARACTERS] for text in batch.texts())
        return batch

    def _items(self, document: Document) -> Iterator[str | NDArray[np.uint32]]:
        items = items_of(document, self._tokenizer, self._piece_characters)
        first = next(items, None)
        if first is None:
            return
        if self._config.document_boundaries and self._num_documents:
            yield _SEPARATOR
        self._num_documents += 1
        yield first
        yield from items


def documents_of(source: Source, config: GraphConfig, tokenizer: CorpusTokenizer) -> Iterator[Document]:
    """Stream the documents of a file as :func:`~speculant_graph.corpus.documents.read_documents` does, by settings."""
    size = tokenizer.fingerprint.vocabulary_size
    return read_documents(source, config.text_field, config.token_ids_field, size)


def items_of(
    document: Document, tokenizer: CorpusTokenizer, piece_characters: int
) -> Iterator[str | NDArray[np.uint32]]:
    """Stream what a document adds to a stream, nothing if it is empty: token ids, and texts to be encoded.

    Args:
        document: what to read.
        tokenizer: its BOS and EOS tokens wrap texts.
        piece_characters: as in :func:`~speculant_graph.corpus.text.cut_text`.

    Raises:
        CorpusError: the text has half a character, or too many blanks in a row.
    """
    if document.token_ids is not None:
        if document.token_ids.size:
            yield document.token_ids
        return
    pieces = cut_text(document.texts, piece_characters)
    first = next(pieces, None)
    if first is None:
        return
    if tokenizer.bos_id is not None:
        yield np.array([tokenizer.bos_id], np.uint32)
    yield _proper(first, document)
    for piece in pieces:
        yield _proper(piece, document)
    if tokenizer.eos_id is not None:
        yield np.array([tokenizer.eos_id], np.uint32)


def _proper(piece: str, document: Document) -> str:
    try:
        piece.encode()
    except UnicodeEncodeError as error:
        raise CorpusError(
            f"{document.label}: half of a surrogate pair ({error.object[error.start]!r}) is no character; "
            "correct the text"
        ) from error
    if len(piece) > _MOST_BLANKS and re.search(rf"\s{{{_MOST_BLANKS}}}", piece):
        raise CorpusError(f"{document.label}: {_MOST_BLANKS:,} blanks in a row can't be tokenised; take them out")
    return piece
