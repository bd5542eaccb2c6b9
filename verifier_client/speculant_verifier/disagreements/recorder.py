"""Detailed mode: every rejected token with what the target preferred, in files.

:mod:`speculant_verifier.disagreements.rejections` finds them. Files hold one JSON object a line, see
:class:`Disagreement`. They hold tokens of users' texts, and only this user may read them. Nothing here needs torch.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from loguru import logger
from pydantic import TypeAdapter, ValidationError

from speculant_graph.errors import ConfigError
from speculant_graph.types import TokenId
from speculant_verifier.disagreements.rotated_lines import RotatedLines, files_of

MAX_WAITING = 20_000
"""Records kept in memory while the disk is slow; more are lost."""

_PREFIX = "disagreements-"
_MANY = MAX_WAITING // 10


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A drafted token that the target rejected."""

    request_id: str
    """Which request."""
    session_id: int
    """Its session at the drafter."""
    position: int
    """Index in the sequence, prompt included, of the token that was drafted and rejected."""
    context: tuple[TokenId, ...]
    """The last tokens before it, accepted ones of the same draft included."""
    drafted: TokenId
    """The token that was rejected."""
    chosen: TokenId
    """The token that was emitted instead."""
    drafted_probability: float
    """The target's probability of the drafted token."""
    chosen_probability: float
    """The target's probability of its own choice: how sure it was."""
    top_token_ids: tuple[TokenId, ...]
    """The target's most probable tokens, best first."""
    top_probabilities: tuple[float, ...]
    """Their probabilities."""
    path_probability: float | None
    """The drafter's estimate that the path to the drafted token is accepted; None if it made none."""
    q: float | None
    """The drafter's probability of the drafted token; None if it was not drawn from a known distribution."""
    strategy: str
    """What made the draft."""
    rule: str
    """By which rule it was verified."""
    acceptance_rate: float
    """Accepted share of the tokens drafted for the request until then."""
    time_s: float
    """When, seconds since 1970."""
    schema_version: Literal[1] = 1
    """Version of this record."""


_FORMAT = TypeAdapter(Disagreement)


@dataclass(frozen=True, slots=True)
class RecorderStatistics:
    """What a recorder did since it was made."""

    recorded: int
    """Disagreements that it was given."""
    written: int
    """Those handed to the operating system."""
    lost: int
    """Those that could not be written; the others still wait."""


class DisagreementRecorder:
    """Writes disagreements to a folder, by a thread of its own.

    Safe to use from several threads, and several processes may use one folder. The death of this process loses what
    came since the last time that the thread wrote; lines are whole but for, at worst, the last one of a file. Nothing
    raises once it is made: what can't be written is counted, and a warning says so once until it works again.
    """

    def __init__(self, folder: str | Path, *, max_bytes: int, flush_s: float = 1.0) -> None:
        """Open a folder, or make it.

        Args:
            folder: where the files are.
            max_bytes: most bytes of all files; the oldest are deleted.
            flush_s: seconds after which records are written.

        Raises:
            ConfigError: the folder can't be made.
        """
        try:
            self._lines = RotatedLines(Path(folder), _PREFIX, max_bytes)
        except OSError as error:
            raise ConfigError(
                f"{folder} can't be used for disagreements ({error.strerror}); "
                "check permissions, or name another folder"
            ) from error
        self._folder = folder
        self._flush_s = flush_s
        self._lock = threading.Lock()  # of what waits and the counts
        self._writing = threading.Lock()
        self._waiting: list[Disagreement] = []
        self._recorded = self._written = self._lost = 0
        self._is_failing = self._is_closed = False
        self._wake = threading.Event()
        self._worker = threading.Thread(target=self._work, name="disagreements", daemon=True)
        self._worker.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def statistics(self) -> RecorderStatistics:
        """Counts since the recorder was made."""
        with self._lock:
            return RecorderStatistics(self._recorded, self._written, self._lost)

    def record(self, disagreement: Disagreement) -> None:
        """Take one; the disk is not touched. After :meth:`close` it is counted as lost."""
        with self._lock:
            self._recorded += 1
            if self._is_closed or len(self._waiting) >= MAX_WAITING:
                self._lost += 1
                return
            self._waiting.append(disagreement)
            if len(self._waiting) == _MANY:
                self._wake.set()

    def flush(self) -> None:
        """Write what waits; other processes can read it when this returns."""
        with self._writing:
            with self._lock:
                taken, self._waiting = self._waiting, []
            if not taken:
                return
            lines = [_FORMAT.dump_json(each, warnings="none") + b"\n" for each in taken]
            written = 0
            for part in self._lines.parts(lines):
                try:
                    self._lines.append(part)
                    written += len(part)
                    self._is_failing = False
                except OSError as error:
                    if not self._is_failing:
                        logger.warning(
                            "disagreements can't be written to {} and are lost ({}); check space and permissions",
                            self._folder, error.strerror,
                        )  # fmt: skip
                    self._is_failing = True
            with self._lock:
                self._written += written
                self._lost += len(taken) - written

    def close(self) -> None:
        """Write what waits and end; a second time does nothing."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        self._wake.set()
        self._worker.join()
        self.flush()
        self._lines.close()

    def _work(self) -> None:
        while not self._is_closed:
            self._wake.wait(self._flush_s)
            self._wake.clear()
            self.flush()


def read_disagreements(folder: str | Path) -> Iterator[Disagreement]:
    """Yield the disagreements in a folder, file by file, the oldest file first.

    A line that is torn, damaged or of another version of the record is left out; of whole ones a warning says so. Files
    may be written and deleted meanwhile.
    """
    for path in files_of(Path(folder), _PREFIX):
        num_bad = 0
        try:
            with path.open("rb") as file:
                for line in file:
                    try:
                        yield _FORMAT.validate_json(line)
                    except ValidationError:
                        num_bad += line.endswith(b"\n")  # a torn one is what the death of a process leaves
        except FileNotFoundError:  # deleted to make room
            continue
        if num_bad:
            logger.warning("{}: {} lines are damaged or of another release and left out", path, num_bad)
