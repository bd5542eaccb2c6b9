"""Builds a graph from files: reads, tokenises, counts, describes."""

from __future__ import annotations

import datetime
import hashlib
import importlib.metadata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from loguru import logger
from pydantic import SecretStr, ValidationError

from speculant_graph.config import DEFAULT_MODEL, GraphConfig
from speculant_graph.corpus.loaders import list_corpus_files
from speculant_graph.corpus.stream import tokenize_files
from speculant_graph.corpus.tokenize import CorpusTokenizer
from speculant_graph.errors import ConfigError, GraphError
from speculant_graph.graph.counting import count_ngrams
from speculant_graph.graph.metadata import FORMAT_VERSION, CorpusFile, GraphMetadata
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.graph.store import save_graph
from speculant_graph.graph.trie import Trie, UInt32Array
from speculant_graph.types import Fingerprint, TokenId


@dataclass(frozen=True, slots=True)
class BuildProgress:
    """How far a build is."""

    phase: Literal["tokenize", "count", "save"]
    """What is being done."""
    done: int
    """Units of the phase that are done: bytes of text, levels of n-grams, or files written."""
    total: int
    """Units of the phase."""
    num_tokens: int
    """Tokens read so far."""


ProgressCallback = Callable[[BuildProgress], None]


class GraphBuilder:
    """Builds one graph from text files.

    Every file is wrapped in the tokenizer's BOS and EOS tokens, if it has them; files without text are left
    out. The files form one stream, so n-grams run across their borders.
    """

    def __init__(
        self,
        tokenizer_name: str = DEFAULT_MODEL,
        max_order: int = 5,
        chunk_size: int = 1_000_000,
        hf_token: str | SecretStr | None = None,
        encoding: str = "utf-8",
    ) -> None:
        """Take the settings of :class:`~speculant_graph.config.GraphConfig`.

        Raises:
            ConfigError: a setting is out of bounds.
        """
        try:
            self.config = GraphConfig.model_validate(
                {
                    "tokenizer_name": str(tokenizer_name),
                    "max_order": max_order,
                    "chunk_size": chunk_size,
                    "hf_token": hf_token,
                    "encoding": encoding,
                }
            )
        except ValidationError as error:
            problem = error.errors()[0]
            name = ".".join(map(str, problem["loc"]))
            raise ConfigError(f"{name}: {problem['msg']}; see GraphConfig") from error
        self._graph: NgramGraph | None = None

    def build_from_files(
        self, paths: str | Path | Iterable[str | Path], *, progress: ProgressCallback | None = None
    ) -> NgramGraph:
        """Build the graph of text files, and of all text files in folders.

        Args:
            paths: files and folders, counted in this order.
            progress: told about every step.

        Raises:
            ConfigError: the tokenizer can't be loaded or the encoding does not exist.
            CorpusError: a file can't be read, or there is no text.
        """
        files = list_corpus_files(paths)
        hf_token = self.config.hf_token.get_secret_value() if self.config.hf_token else None
        tokenizer = CorpusTokenizer.load(self.config.tokenizer_name, hf_token)
        total_bytes = sum(file.stat().st_size for file in files)

        def on_batch(num_bytes: int, num_tokens: int) -> None:
            if progress is not None:
                progress(BuildProgress("tokenize", min(num_bytes, total_bytes), total_bytes, num_tokens))

        token_ids = tokenize_files(tokenizer, files, self.config.chunk_size, self.config.encoding, on_batch)
        on_batch(total_bytes, token_ids.size)
        self._graph = build_from_token_ids(
            token_ids,
            tokenizer.fingerprint,
            max_order=self.config.max_order,
            corpus_files=tuple(map(_described, files)),
            progress=progress,
        )
        logger.info("graph of {} tokens from {} files", token_ids.size, len(files))
        return self._graph

    def save(self, path: str | Path, *, progress: ProgressCallback | None = None) -> None:
        """Write the graph that was built last.

        Raises:
            ConfigError: nothing was built yet.
            GraphFileError: the file can't be written.
        """
        if self._graph is None:
            raise ConfigError("no graph to save; call build_from_files first")
        num_tokens = self._graph.metadata.num_tokens
        report = progress or _ignore
        report(BuildProgress("save", 0, 1, num_tokens))
        save_graph(self._graph, path)
        report(BuildProgress("save", 1, 1, num_tokens))


def build_from_token_ids(
    token_ids: Sequence[TokenId] | UInt32Array,
    fingerprint: Fingerprint,
    *,
    max_order: int = 5,
    corpus_files: tuple[CorpusFile, ...] = (),
    progress: ProgressCallback | None = None,
) -> NgramGraph:
    """Build the graph of one token stream.

    Args:
        token_ids: the stream, shape ``[num_tokens]``; nothing is added to it.
        fingerprint: the tokenizer of the ids.
        max_order: longest context.
        corpus_files: where the tokens come from.
        progress: told about every level that is counted.

    Raises:
        CorpusError: the stream is empty.
        GraphError: an id is outside the vocabulary.
    """
    try:
        stream = np.asarray(token_ids)
        if stream.size and not 0 <= int(stream.min()) <= int(stream.max()) < 2**32:
            raise OverflowError
        stream = stream.astype(np.uint32, copy=False)
    except OverflowError as error:
        raise GraphError("token ids must be 0 or more and below 2**32; check the tokenizer") from error

    def on_level(num_levels: int) -> None:
        if progress is not None:
            progress(BuildProgress("count", num_levels, max_order + 1, stream.size))

    trie = count_ngrams(stream, fingerprint.vocabulary_size, max_order, on_level)
    metadata = GraphMetadata(
        format_version=FORMAT_VERSION,
        tokenizer=fingerprint,
        max_order=max_order,
        num_tokens=stream.size,
        contexts_per_order=_contexts_per_order(trie),
        transitions_per_order=tuple(level.size for level in trie.token_ids[1:]),
        built_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        corpus_files=corpus_files,
        library_version=_library_version(),
    )
    return NgramGraph(trie, metadata)


def _contexts_per_order(trie: Trie) -> tuple[int, ...]:
    return tuple(int(np.count_nonzero(np.diff(offsets))) for offsets in trie.child_offsets)


def _described(file: Path) -> CorpusFile:
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return CorpusFile(str(file), file.stat().st_size, digest)


def _library_version() -> str:
    try:
        return importlib.metadata.version("speculant-graph")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _ignore(_: BuildProgress) -> None:
    pass
