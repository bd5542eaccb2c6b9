"""Builds graphs from files: reads and tokenises text, trains the model, calibrates and counts n-grams."""

from __future__ import annotations

import dataclasses
import importlib
import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from speculant_graph.config import DEFAULT_MODEL, GraphConfig
from speculant_graph.corpus.file_patterns import list_corpus_files
from speculant_graph.corpus.source import CorpusFile, SkippedFile
from speculant_graph.corpus.stream import DOCUMENT_SEPARATOR, Encode, encode_sources, write_token_stream
from speculant_graph.corpus.tokenize import CorpusTokenizer
from speculant_graph.errors import ConfigError, GraphError
from speculant_graph.files import workspace, writing
from speculant_graph.graph.build.build_report import BuildReport, Phase, built_at
from speculant_graph.graph.build.count import CountParts, count_parts, count_tokens, map_tokens
from speculant_graph.graph.build.neural import train_model
from speculant_graph.graph.layout import UInt32Array, require_vocabulary
from speculant_graph.graph.metadata import FORMAT_VERSION, GraphMetadata
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.graph.store import check_description, checked_output
from speculant_graph.machine import num_cores
from speculant_graph.types import Fingerprint, SpecialTokensName, TokenId
from speculant_graph.version import VERSION


@dataclass(frozen=True, slots=True)
class BuildProgress:
    """Progress of a build."""

    phase: Phase | Literal["check", "combine"]
    """Current phase. The phase ``check`` checks files before they are read; ``combine`` merges two graphs or prunes
    one."""
    done: int
    """Number of finished units of the phase. Depending on the phase, the units are bytes of corpus files, training
    positions, the whole held-out slice, tokens, levels, or records."""
    total: int
    """Total number of units of the phase; 0 if unknown."""
    num_tokens: int
    """Number of tokens read so far."""


ProgressCallback = Callable[[BuildProgress], None]

Calibrate = Callable[[Path, GraphMetadata, int, int, UInt32Array | None], bytes]
"""Function that computes a graph's calibration (:attr:`GraphMetadata.calibration`).

Arguments: the file of a token stream; the graph's metadata; the memory limit in bytes; the number of threads; the
neural model as 32-bit words, or None. The function may write temporary files next to the token stream, and removes
these files."""


@dataclass(frozen=True, slots=True)
class Workers:
    """Functions that do most of a build's work, in this process or on other machines."""

    encode: Encode = encode_sources
    """Converts files to token ids."""
    count: CountParts = count_parts
    """Counts n-grams."""


class GraphBuilder:
    """Builds one graph from the files of a corpus.

    Every text is wrapped in BOS and EOS tokens, if the tokenizer has them; documents of token ids are counted
    unchanged. Empty documents are left out. The documents form one stream, so n-grams cross document boundaries unless
    ``document_boundaries`` is set. Memory stays within the setting ``memory`` for a corpus of any size. Four kinds of
    input may exceed the memory limit, because they are read as a whole: a JSON record, a JSON file, a PDF, and a
    document without a point at which to split it.
    """

    def __init__(self, tokenizer_name: str | Path = DEFAULT_MODEL, max_order: int = 5, **settings: Any) -> None:
        """Make a builder with the settings of :class:`~speculant_graph.config.GraphConfig`.

        Args:
            tokenizer_name: the tokenizer's name on the hub, or its folder.
            max_order: length of the longest context, in tokens.
            settings: other settings, by name.

        Raises:
            ConfigError: a setting is out of bounds or unknown.
        """
        name = os.fspath(tokenizer_name) if isinstance(tokenizer_name, os.PathLike) else tokenizer_name
        named = {"tokenizer_name": name, "max_order": max_order}
        self.config = GraphConfig(**named | settings)
        self.report: BuildReport | None = None
        """Time and memory of the last build."""
        self._graph: NgramGraph | None = None

    def build(
        self,
        corpus: str | Path | Iterable[str | Path],
        output: str | Path,
        *,
        progress: ProgressCallback | None = None,
        calibrate: Calibrate | bool = True,
        start: UInt32Array | None = None,
        workers: Workers = Workers(),
    ) -> NgramGraph:
        """Build the graph of a corpus into a file; an existing file stays intact until the new one is complete.

        Args:
            corpus: files, folders, glob patterns, or ``-`` for standard input, counted in this order.
            output: the graph file.
            progress: called at every step.
            calibrate: function that learns from the tokens how reliable contexts are. True calls
                :func:`~speculant_graph.draft.pretraining.pretrain`, which takes about a second; False skips
                calibration.
            start: a neural model to train further, as 32-bit words; not used if no model is trained.
            workers: functions that tokenise and count, in this process or on other machines; see
                :func:`~speculant_graph.graph.build.on_ray.workers_on_ray`.

        Returns:
            The graph, mapped from the file.

        Raises:
            ConfigError: the tokenizer can't be loaded.
            CorpusError: a file can't be read, or there is no text.
            GraphError: there are more tokens than a graph can contain.
            GraphFileError: the file can't be written.
        """
        watch = BuildReport()
        output = checked_output(output)
        with watch.watching(), workspace(output) as folder:
            learn = _standard_calibration() if calibrate is True else calibrate or None
            self._build(corpus, output, folder, watch, progress or (lambda _: None), learn, start, workers)
        self.report = watch
        return NgramGraph.load(output)

    def _build(
        self,
        corpus: str | Path | Iterable[str | Path],
        output: Path,
        folder: Path,
        watch: BuildReport,
        report: ProgressCallback,
        calibrate: Calibrate | None,
        start: UInt32Array | None,
        workers: Workers,
    ) -> None:
        with watch.measuring("tokenize"):
            files = list_corpus_files(corpus)
            hf_token = self.config.hf_token.get_secret_value() if self.config.hf_token else None
            tokenizer = CorpusTokenizer.load(self.config.tokenizer_name, hf_token, self.config.special_tokens)
            require_vocabulary(tokenizer.fingerprint.vocabulary_size)
            total_bytes = sum(file.path.stat().st_size for file in files if file.path.is_file())

            def on_check(num_bytes: int) -> None:
                report(BuildProgress("check", num_bytes, total_bytes, 0))

            def on_bytes(num_bytes: int, num_tokens: int) -> None:
                report(BuildProgress("tokenize", num_bytes, total_bytes, num_tokens))

            stream = write_token_stream(
                tokenizer, files, folder / "tokens", self.config, on_bytes, on_check, workers.encode
            )
            metadata = describe_tokens(
                map_tokens(stream.path),
                tokenizer.fingerprint,
                max_order=self.config.max_order,
                revision=tokenizer.revision,
                num_documents=stream.num_documents,
                document_boundaries=self.config.document_boundaries,
                special_tokens=self.config.special_tokens,
                corpus_files=stream.files,
                skipped=stream.skipped,
            )
            del tokenizer  # frees hundreds of megabytes for counting
        model = None
        if self.config.neural:
            with watch.measuring("train"):
                model = train_model(
                    stream.path,
                    metadata.tokenizer.vocabulary_size,
                    lambda done, total: report(BuildProgress("train", done, total, stream.num_tokens)),
                    leaves_out=calibrate is not None,
                    start=start,
                )
        if calibrate is not None:
            report(BuildProgress("calibrate", 0, 0, stream.num_tokens))
            with watch.measuring("calibrate"):
                calibration = calibrate(stream.path, metadata, int(self.config.memory), num_cores(), model)
            report(BuildProgress("calibrate", 1, 1, stream.num_tokens))
            metadata = dataclasses.replace(metadata, calibration=calibration)
        check_description(metadata)
        count_tokens(
            stream.path,
            output,
            metadata,
            folder,
            memory=int(self.config.memory),
            jobs=num_cores(),
            watch=watch,
            on_progress=lambda phase, done, total: report(BuildProgress(phase, done, total, stream.num_tokens)),
            model=model,
            count=workers.count,
        )

    def build_from_files(
        self,
        paths: str | Path | Iterable[str | Path],
        *,
        progress: ProgressCallback | None = None,
        calibrate: Calibrate | bool = True,
    ) -> NgramGraph:
        """Build a graph in the system's folder for temporary files; :meth:`save` writes it to another path.

        Args:
            paths: files, folders, glob patterns, or ``-`` for standard input, counted in this order.
            progress: called at every step.
            calibrate: see :meth:`build`.

        Returns:
            The graph.

        Raises:
            ConfigError: the tokenizer can't be loaded.
            CorpusError: a file can't be read, or there is no text.
            GraphError: there are more tokens than a graph can contain.
            GraphFileError: the folder for temporary files has no space.
        """
        with tempfile.TemporaryDirectory(prefix="speculant-") as folder:
            # The deleted file stays on disk while the graph is mapped.
            self._graph = self.build(paths, Path(folder) / "graph.pkl", progress=progress, calibrate=calibrate)
        return self._graph

    def save(self, path: str | Path) -> None:
        """Write the graph of the latest call of :meth:`build_from_files` to a file.

        Raises:
            ConfigError: no graph was built yet.
            GraphFileError: the file can't be written.
        """
        if self._graph is None:
            raise ConfigError("no graph to save; call build_from_files first")
        self._graph.save(path)


def _standard_calibration() -> Calibrate:
    """Return the standard calibration function; it is imported by name because it belongs to a higher layer."""
    calibrate: Calibrate = importlib.import_module("speculant_graph.draft.pretraining").pretrain
    return calibrate


def build_from_token_ids(
    token_ids: Sequence[TokenId] | UInt32Array,
    fingerprint: Fingerprint,
    *,
    max_order: int = 5,
    documents: Sequence[Sequence[TokenId]] | None = None,
    memory: int = 2_000_000_000,
    jobs: int = 1,
) -> NgramGraph:
    """Build the graph of a stream of token ids.

    Args:
        token_ids: the stream, shape ``[num_tokens]``; nothing is added to it.
        fingerprint: fingerprint of the tokenizer that made the ids.
        max_order: length of the longest context, in tokens.
        documents: token ids of each document, used instead of ``token_ids``; n-grams stop at document boundaries.
        memory: memory limit in bytes.
        jobs: number of threads.

    Raises:
        ConfigError: an argument is out of bounds.
        CorpusError: there are no tokens.
        GraphError: an id is outside the vocabulary.
    """
    GraphBuilder(max_order=max_order)  # checks max_order
    stream = _joined(token_ids, documents)
    with tempfile.TemporaryDirectory(prefix="speculant-") as temporary:
        folder = Path(temporary)
        with writing(folder):
            stream.astype("<u4", copy=False).tofile(folder / "tokens")
        metadata = describe_tokens(
            stream,
            fingerprint,
            max_order=max_order,
            num_documents=1 if documents is None else sum(1 for document in documents if len(document)),
            document_boundaries=documents is not None,
        )
        output = folder / "graph.pkl"
        count_tokens(folder / "tokens", output, metadata, folder, memory=memory, jobs=jobs)
        return NgramGraph.load(output)


def describe_tokens(
    token_ids: UInt32Array,
    fingerprint: Fingerprint,
    *,
    max_order: int,
    num_documents: int,
    document_boundaries: bool,
    special_tokens: SpecialTokensName = "text",
    revision: str = "",
    corpus_files: tuple[CorpusFile, ...] = (),
    skipped: tuple[SkippedFile, ...] = (),
) -> GraphMetadata:
    """Return the metadata of a token stream's graph, with all sizes set to 0.

    Args:
        token_ids: the stream, shape ``[num_tokens]``.
        fingerprint: fingerprint of the tokenizer that made the ids.
        max_order: length of the longest context, in tokens.
        num_documents: number of documents in the stream.
        document_boundaries: whether n-grams stop at document boundaries.
        special_tokens: whether special tokens in texts were read as ordinary text or parsed.
        revision: commit of the tokenizer, if it comes from a hub.
        corpus_files: corpus files, if the stream was read from files.
        skipped: corpus files that were skipped, entirely or in part.
    """
    num_separators = num_documents - 1 if document_boundaries and num_documents else 0
    return GraphMetadata(
        format_version=FORMAT_VERSION,
        tokenizer=fingerprint,
        tokenizer_revision=revision,
        max_order=max_order,
        num_tokens=token_ids.size - num_separators,
        num_documents=num_documents,
        document_boundaries=document_boundaries,
        min_count=1,
        nodes_per_level=(0,) * (max_order + 1),
        contexts_per_order=(0,) * max_order,
        # With boundaries, no n-gram crosses the ends of the stream.
        head_token_ids=() if document_boundaries else tuple(token_ids[:max_order].tolist()),
        tail_token_ids=() if document_boundaries else tuple(token_ids[-max_order:].tolist()),
        built_at=built_at(),
        build_seconds=0.0,
        corpus_files=corpus_files,
        skipped=skipped,
        library_version=VERSION,
        special_tokens=special_tokens,
    )


def _joined(token_ids: Sequence[TokenId] | UInt32Array, documents: Sequence[Sequence[TokenId]] | None) -> UInt32Array:
    pieces = [_ids(document) for document in ([token_ids] if documents is None else documents)]
    separator = np.array([DOCUMENT_SEPARATOR], np.uint32)
    joined = [piece for document in pieces if document.size for piece in (separator, document)][1:]
    return np.concatenate(joined) if joined else np.empty(0, np.uint32)


def _ids(token_ids: Sequence[TokenId] | UInt32Array) -> UInt32Array:
    array = np.asarray(token_ids)
    is_whole = array.dtype.kind in "iu" or (array.dtype.kind == "O" and all(isinstance(x, int) for x in array.flat))
    if array.size and (array.ndim != 1 or not is_whole):
        raise GraphError("token ids must be a flat list of whole numbers; check what you pass")
    if array.size and not 0 <= int(array.min()) <= int(array.max()) < DOCUMENT_SEPARATOR:
        raise GraphError("token ids must be 0 or more and within the vocabulary; check the tokenizer")
    return array.astype(np.uint32, copy=False)
