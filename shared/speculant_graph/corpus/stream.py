"""Writes the token ids of files as one stream on disk."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from speculant_graph.config import GraphConfig
from speculant_graph.corpus.check import CheckedCorpus, check_corpus
from speculant_graph.corpus.documents import Document, RecordError, read_documents
from speculant_graph.corpus.file_patterns import ListedFile
from speculant_graph.corpus.source import CorpusFile, SkippedFile, Source
from speculant_graph.corpus.tokenize import CorpusTokenizer, cut_text
from speculant_graph.errors import CorpusError, GraphError
from speculant_graph.machine import num_cores

DOCUMENT_SEPARATOR = 0xFFFF_FFFF
"""Id that separates documents in a stream; no tokenizer has this id."""
_SEPARATOR = np.array([DOCUMENT_SEPARATOR], np.uint32)

# Small pieces keep all cores busy to the end of a batch.
_PIECE_CHARACTERS = 1 << 16
_WHOLE = 1 << 62
# Upper bound of the memory per character in flight, as text and as ids. It is generous, so that text takes only a small
# part of a build's memory.
_BYTES_PER_CHARACTER = 32


@dataclass(frozen=True, slots=True)
class TokenStream:
    """A corpus as a stream of token ids in a file."""

    path: Path
    """File of little-endian uint32 ids: all documents in order, separated if ``document_boundaries`` is set."""
    num_tokens: int
    """Number of token ids in the file, not counting separators."""
    num_documents: int
    """Number of documents that have tokens."""
    files: tuple[CorpusFile, ...]
    """Files that were read, in order, including files without text."""
    skipped: tuple[SkippedFile, ...] = ()
    """Files that were skipped, or in which records were skipped."""


@dataclass(frozen=True, slots=True)
class EncodedPart:
    """A part of a token stream."""

    token_ids: NDArray[np.uint32]
    """Ids of the part, shape ``[num_ids]``, including separators between its documents and before its first one."""
    num_separators: int
    """Number of ids that are separators, not tokens."""
    num_documents: int
    """Number of documents that begin in this part."""
    num_bytes: int
    """Number of file bytes that were read for this part."""
    files: tuple[CorpusFile, ...]
    """Files whose last tokens are in this part."""


Encode = Callable[[CorpusTokenizer, Sequence[Source], GraphConfig], Iterator[EncodedPart]]
"""Function that encodes checked files, and yields the parts of their stream in order."""


def encode_sources(
    tokenizer: CorpusTokenizer, sources: Sequence[Source], config: GraphConfig, jobs: int = 0
) -> Iterator[EncodedPart]:
    """Read and encode files, a batch at a time; this function is an :data:`Encode`.

    Args:
        tokenizer: encodes the texts.
        sources: checked files, or parts of them.
        config: as in :func:`write_token_stream`.
        jobs: number of cores for the tokenizer; 0 uses all.
    """
    corpus = _Corpus(tokenizer, config, jobs or num_cores())
    num_documents = num_files = num_bytes = 0
    for batch in corpus.batches(sources):
        yield EncodedPart(
            corpus.ids_of(batch),
            batch.num_separators,
            corpus.num_documents - num_documents,
            batch.bytes_read - num_bytes,
            tuple(corpus.files[num_files:]),
        )
        num_documents, num_files, num_bytes = corpus.num_documents, len(corpus.files), batch.bytes_read


def write_token_stream(
    tokenizer: CorpusTokenizer,
    files: Sequence[ListedFile],
    path: Path,
    config: GraphConfig,
    on_progress: Callable[[int, int], None] | None = None,
    on_check: Callable[[int], None] | None = None,
    encode: Encode = encode_sources,
) -> TokenStream:
    """Write the token ids of all documents of all files, in order, to a file.

    All files are checked before the first one is tokenised (:func:`~speculant_graph.corpus.check.check_corpus`).
    Each text is wrapped in the tokenizer's BOS and EOS tokens, if it has them; token ids are used unchanged. Empty
    documents are left out. The stream does not depend on ``chunk_size``.

    About ``chunk_size`` characters per core are in memory at a time. Some inputs are in memory as a whole, at any size:
    a text without a position to cut at, such as one huge line of base64; a JSON record; and a PDF, both its file and
    its text. If the tokenizer's texts can't be cut (:attr:`CorpusTokenizer.is_cuttable`), every document is in memory
    as a whole.

    Args:
        tokenizer: encodes the texts.
        files: the files, in this order.
        path: the file to write; its content is undefined after an error. The file's folder needs space for copies of
            standard input, pipes and object storage, and for the text of PDFs.
        config: the settings ``chunk_size``, ``memory``, ``text_field``, ``encoding``, ``on_error`` and
            ``document_boundaries`` (one :data:`DOCUMENT_SEPARATOR` between documents) are used. The tokenizer, not this
            configuration, decides how special tokens in a text are read.
        on_progress: called with the bytes of files whose tokens are written, and the number of these tokens.
        on_check: called with the bytes of checked files.
        encode: encodes the checked files.

    Raises:
        CorpusError: files can't be read and the settings don't skip them, there is no text, or the tokenizer makes no
            tokens from it.
        GraphError: the stream can't be written.
        ModuleNotFoundError: a required module is not installed.
    """
    try:
        with tempfile.TemporaryDirectory(dir=path.parent, prefix="corpus-") as kept:
            checked = check_corpus(files, config, tokenizer.fingerprint.vocabulary_size, Path(kept), on_check)
            return _write(tokenizer, checked, path, config, on_progress, encode)
    except OSError as error:  # errors while reading are CorpusErrors
        raise GraphError(
            f"{path} can't be written ({error.strerror}); free space there, or name another path"
        ) from error


def _write(
    tokenizer: CorpusTokenizer,
    checked: CheckedCorpus,
    path: Path,
    config: GraphConfig,
    on_progress: Callable[[int, int], None] | None,
    encode: Encode,
) -> TokenStream:
    num_tokens = num_documents = num_bytes = 0
    files: list[CorpusFile] = []
    with path.open("wb") as output:
        for part in encode(tokenizer, checked.sources, config):
            output.write(part.token_ids.astype("<u4", copy=False).data)
            num_tokens += part.token_ids.size - part.num_separators
            num_documents += part.num_documents
            num_bytes += part.num_bytes
            files += part.files
            if on_progress is not None:
                on_progress(num_bytes, num_tokens)
    if num_documents == 0:
        num_files = len(files)
        named = checked.sources[0].label if num_files == 1 else f"none of {num_files} files"
        raise CorpusError(f"{named} contains {'no ' if num_files == 1 else ''}text; name files that do")
    if num_tokens == 0:
        raise CorpusError(
            f"tokenizer {tokenizer.fingerprint.name} makes no tokens from this text",
            fix="set {field} to another, or name other files",
            field="graph.tokenizer_name",
        )
    return TokenStream(path, num_tokens, num_documents, tuple(files), checked.skipped)


@dataclass(slots=True)
class _Batch:
    """A batch of consecutive pieces of a stream: texts to encode, and token ids."""

    items: list[str | NDArray[np.uint32]] = field(default_factory=list)
    size: int = 0
    """Size of the batch: characters of its texts plus number of its ids."""
    num_separators: int = 0
    """Number of separators in the batch; separators do not count as tokens."""
    bytes_read: int = 0
    """Number of file bytes that had been read when the batch was complete."""

    def add(self, item: str | NDArray[np.uint32]) -> None:
        """Append a text, or ids of shape ``[num_ids]``, to the batch."""
        self.items.append(item)
        self.size += len(item)
        self.num_separators += item is _SEPARATOR


class _Corpus:
    """Reads files into batches of texts and ids, and encodes the batches."""

    def __init__(self, tokenizer: CorpusTokenizer, config: GraphConfig, jobs: int) -> None:
        self.files: list[CorpusFile] = []
        self.num_documents = 0
        self._tokenizer = tokenizer
        self._config = config
        self._batch_size = min(config.chunk_size * jobs, config.memory // _BYTES_PER_CHARACTER)
        self._piece_characters = min(_PIECE_CHARACTERS, config.chunk_size) if tokenizer.is_cuttable else _WHOLE

    def ids_of(self, batch: _Batch) -> NDArray[np.uint32]:
        """Return the ids of a batch, shape ``[num_ids]``; the ``tokenizers`` library encodes texts on all cores."""
        encoded = iter(self._tokenizer.encode_batch([item for item in batch.items if isinstance(item, str)]))
        parts = [np.array(next(encoded), np.uint32) if isinstance(item, str) else item for item in batch.items]
        return np.concatenate(parts) if parts else np.empty(0, np.uint32)

    def batches(self, sources: Iterable[Source]) -> Iterator[_Batch]:
        """Yield the batches of all files, in order."""
        finished_bytes = 0
        on_bad_record = _leave_out if self._config.on_error == "skip" else None
        for source in sources:
            batch = _Batch()
            vocabulary_size = self._tokenizer.fingerprint.vocabulary_size
            for document in read_documents(source, self._config, vocabulary_size, on_bad_record):
                for item in self._items(document, source):
                    batch.add(item)
                    if batch.size >= self._batch_size:
                        batch.bytes_read = finished_bytes + source.num_bytes
                        yield batch
                        batch = _Batch()
            self.files.append(source.describe(self._config.text_field))
            finished_bytes += source.num_bytes
            batch.bytes_read = finished_bytes
            yield batch

    def _items(self, document: Document, source: Source) -> Iterator[str | NDArray[np.uint32]]:
        if source.span is not None and source.format == "text":  # it is a part of one document
            yield from self._items_of_part(document, source, *source.span)
            return
        items = items_of(document, self._tokenizer, self._piece_characters)
        first = next(items, None)
        if first is None:
            return
        if self._config.document_boundaries and self.num_documents:
            yield _SEPARATOR
        self.num_documents += 1
        yield first
        yield from items

    def _items_of_part(
        self, document: Document, source: Source, start: int, stop: int
    ) -> Iterator[str | NDArray[np.uint32]]:
        first_id, last_id = self._tokenizer.bos_id, self._tokenizer.eos_id
        if start == 0:
            self.num_documents += 1
            yield from () if first_id is None else [np.array([first_id], np.uint32)]
        yield from cut_text(document.texts, self._piece_characters)
        if stop == source.size():
            yield from () if last_id is None else [np.array([last_id], np.uint32)]


def _leave_out(_: RecordError) -> None:
    """Leave out a bad record; the check has already recorded it."""


def items_of(
    document: Document, tokenizer: CorpusTokenizer, piece_characters: int
) -> Iterator[str | NDArray[np.uint32]]:
    """Stream a document's items: token ids, and texts to encode. An empty document has no items.

    Args:
        document: the document.
        tokenizer: wraps texts in its BOS and EOS tokens.
        piece_characters: as in :func:`~speculant_graph.corpus.tokenize.cut_text`.
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
    yield first
    yield from pieces
    if tokenizer.eos_id is not None:
        yield np.array([tokenizer.eos_id], np.uint32)
