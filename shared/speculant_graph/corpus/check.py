"""Checks that all files of a corpus can be read, before any file is tokenised."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from loguru import logger

from speculant_graph.config import GraphConfig
from speculant_graph.corpus.documents import RecordError, extract_pdf, is_configuration, read_documents
from speculant_graph.corpus.encoding import find_encoding
from speculant_graph.corpus.file_patterns import STANDARD_INPUT, ListedFile
from speculant_graph.corpus.source import SkippedFile, Source
from speculant_graph.corpus.storage import address_of
from speculant_graph.errors import CorpusError

_LISTED = 20
"""Maximum number of files that a log line names."""
_BLOCK_BYTES = 1 << 20
_FIX = "correct each, or leave it out with graph.on_error skip"


@dataclass(frozen=True, slots=True)
class CheckedCorpus:
    """The files of a corpus that can be read."""

    sources: tuple[Source, ...]
    """Readable files of the corpus, in order."""
    skipped: tuple[SkippedFile, ...]
    """Files that are skipped as a whole or in part, in order."""


def check_corpus(
    files: Iterable[ListedFile],
    config: GraphConfig,
    vocabulary_size: int,
    folder: Path,
    on_progress: Callable[[int], None] | None = None,
) -> CheckedCorpus:
    """Read every file once, up to its last record, and determine its format and encoding.

    A ``.json`` file found in a folder or by a pattern is read as plain text if it is one object without the text field.
    An example of such a file is the ``package.json`` of source code.

    Args:
        files: the files.
        config: the settings ``encoding``, ``on_error`` and ``text_field`` are used.
        vocabulary_size: token ids of records must be below this number.
        folder: folder for the text of PDFs, and for data that should be read only once, from standard input, named
            pipes and object storage.
        on_progress: called with the number of bytes read so far.

    Raises:
        CorpusError: files or records can't be read, and the settings don't skip them; the error names all of them.
        ModuleNotFoundError: the module that reads a file is not installed.
        OSError: the folder can't be written.
    """
    checks = [_Check(file, config, vocabulary_size, folder / f"corpus-{number}") for number, file in enumerate(files)]
    num_bytes = 0

    def on_bytes(more: int) -> None:
        nonlocal num_bytes
        num_bytes += more
        if on_progress is not None:
            on_progress(num_bytes)

    for check in checks:
        check.run(on_bytes)
    problems = [check for check in checks if check.problem]
    if problems and config.on_error == "fail":
        raise _error(problems, len(checks))
    if not any(check.is_read for check in checks):
        raise _error(problems, len(checks))
    for check in problems:
        logger.warning("left out: {}{}", check.problem, check.others)
    _tell("read with a guessed encoding; set graph.encoding if it is wrong", [
        f"{check.source.label} as {check.source.encoding}" for check in checks if check.is_guess and check.is_read
    ])  # fmt: skip
    _tell("read as plain text, because they have no records with the text field", [
        check.source.label for check in checks if check.is_configuration
    ])  # fmt: skip
    return CheckedCorpus(
        tuple(check.source.reopened() for check in checks if check.is_read),
        tuple(check.skipped for check in problems),
    )


class _Check:
    """Checks one file of the corpus, and keeps the result."""

    def __init__(self, file: ListedFile, config: GraphConfig, vocabulary_size: int, kept: Path) -> None:
        self._file, self._config, self._vocabulary_size, self._kept = file, config, vocabulary_size, kept
        self.source = Source(file.path)
        self.is_guess = self.is_configuration = False
        self.is_read = True
        """Whether any part of the file will be read."""
        self.problem = f"{file.path}: {file.problem}" if file.problem else ""
        """Problem of the file, or of its first bad record; empty if there is none."""
        self.field = ""
        """Name of the setting that causes the problem, if any."""
        self._num_bad = self._num_good = 0

    def run(self, on_bytes: Callable[[int], None]) -> None:
        """Read the file."""
        try:
            if self.problem:
                raise CorpusError(self.problem)
            if _is_read_once(self._file.path):
                self._keep(self.source.stored_blocks(on_bytes), self._kept)
                self.source.stored = self._kept
                on_bytes = _ignore
            self._read(on_bytes)
        except CorpusError as error:
            self.problem, self.field, self.is_read, self._num_bad = str(error), error.field, False, 0
        if self._num_bad and not self._num_good:
            self.is_read = False

    @property
    def others(self) -> str:
        """Message text with the number of bad records after the first; empty if there are none."""
        more = self._num_bad - 1
        return f" (and {more:,} more of its records)" if more > 0 else ""

    @property
    def skipped(self) -> SkippedFile:
        """The file's entry in the graph's list of skipped files."""
        reason = self.problem.removeprefix(f"{self.source.label}: ")
        reason = reason.encode(errors="backslashreplace").decode()  # it may contain a file name that is not valid text
        return SkippedFile(self.source.name, reason, self._num_bad if self.is_read else 0)

    def _keep(self, blocks: Iterable[bytes], kept: Path) -> None:
        """Store a copy of data that can't be read a second time, or only slowly."""
        with kept.open("wb") as copy:
            copy.writelines(blocks)

    def _read(self, on_bytes: Callable[[int], None]) -> None:
        source = self.source
        if source.format == "pdf":
            text = extract_pdf(source.reopened(on_bytes)).encode()
            source.extracted = self._kept.with_suffix(".txt")  # data from a pipe is stored next to it
            self._keep([text], source.extracted)
            return
        is_text = source.format == "text"
        source.encoding, self.is_guess = find_encoding(source, self._config.encoding, on_bytes if is_text else None)
        if is_text:
            return
        is_found = source.format == "json" and not self._file.is_named
        if is_found and is_configuration(source.reopened(_ignore), self._config.text_field):
            source.format, self.is_configuration = "text", True
            return
        for _ in read_documents(source.reopened(on_bytes), self._config, self._vocabulary_size, self._on_bad_record):
            self._num_good += 1

    def _on_bad_record(self, error: RecordError) -> None:
        if not self.problem:
            self.problem, self.field = str(error), error.field
        self._num_bad += 1


def _ignore(_: int) -> None:
    """Do not count these bytes as progress, because the same bytes are counted in another read."""


def _is_read_once(path: Path) -> bool:
    """Return whether a path should be read only once, because it is a stream or a file of object storage."""
    return path == STANDARD_INPUT or address_of(path) is not None or path.is_fifo() or path.is_char_device()


def _error(problems: Sequence[_Check], num_files: int) -> CorpusError:
    """Return one error that reports all problems."""
    texts = tuple(f"{check.problem}{check.others}" for check in problems)
    if len(texts) == 1:
        fix = "" if num_files == 1 else "or leave it out (graph.on_error skip)"
        return CorpusError(texts[0], fix=fix, field=problems[0].field)
    return CorpusError(f"{len(texts)} of {num_files} files can't be read as they are", fix=_FIX, problems=texts)


def _tell(what: str, names: Sequence[str]) -> None:
    if names:
        more = f" and {len(names) - _LISTED:,} more" if len(names) > _LISTED else ""
        logger.warning("{}: {}{}", what, ", ".join(names[:_LISTED]), more)
