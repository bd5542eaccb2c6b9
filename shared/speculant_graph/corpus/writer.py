"""Tokenises batches of text on several threads and writes their ids in order."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from speculant_graph.errors import GraphError

_ID_BYTES = 4


@dataclass(slots=True)
class Batch:
    """Pieces of text and ids that follow each other in a stream."""

    items: list[str | NDArray[np.uint32]] = field(default_factory=list)
    size: int = 0
    """Characters and ids."""
    num_separators: int = 0
    """Ids that do not count as tokens."""
    bytes_read: int = 0
    """Bytes of files read when it was closed."""

    def add(self, item: str | NDArray[np.uint32]) -> None:
        """Append a text, or ids of shape ``[num_ids]``."""
        self.items.append(item)
        self.size += len(item)

    def texts(self) -> Iterator[str]:
        """Return its texts in order."""
        return (item for item in self.items if isinstance(item, str))


@dataclass(frozen=True, slots=True)
class _Pending:
    batch: Batch
    file_number: int
    token_ids: Future[NDArray[np.uint32]]


class StreamWriter:
    """Writes a stream of ids: batches go in and come out in order, threads encode those between."""

    def __init__(
        self,
        path: Path,
        encode: Callable[[str], NDArray[np.uint32]],
        *,
        num_threads: int,
        most_in_flight: int,
        on_progress: Callable[[int, int], None] | None,
    ) -> None:
        """Make an empty file, which is removed again if the ``with`` block raises.

        Args:
            path: the file to write, little-endian uint32.
            encode: text to ids; called by several threads at once.
            num_threads: threads that encode.
            most_in_flight: bound of the characters and ids that wait or are being encoded; one batch may be larger.
            on_progress: called with the bytes of files and the tokens that are done, after every batch.

        Raises:
            GraphError: the file can't be written (as in all methods).
        """
        self._path = path
        with self._writing():
            self._output = path.open("wb")
        self._encode = encode
        self._most_in_flight = most_in_flight
        self._on_progress = on_progress
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="tokenize")
        self._pending: deque[_Pending] = deque()
        self._in_flight = 0
        self._file_number = 0
        # Of the current file, as far as they are written:
        self._file_ids = self._file_tokens = 0
        self.num_tokens = 0
        """Ids written, separators not counted."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._threads.shutdown(cancel_futures=True)
        try:
            with self._writing():
                self._output.close()
        finally:
            if kind is not None:
                self._path.unlink(missing_ok=True)

    def begin_file(self) -> None:
        """What follows belongs to another file, up to which the stream may be cut back."""
        self._file_number += 1
        self._file_ids = self._file_tokens = 0

    def submit(self, batch: Batch) -> None:
        """Append a batch; it is written sooner or later. Waits while too much text is in flight."""
        while self._pending and self._in_flight + batch.size > self._most_in_flight:
            self._write_oldest()
        self._pending.append(_Pending(batch, self._file_number, self._threads.submit(self._ids_of, batch)))
        self._in_flight += batch.size
        while self._pending and self._pending[0].token_ids.done():
            self._write_oldest()

    def drop_file(self) -> None:
        """Take back all that the current file brought."""
        self._write_all()
        with self._writing():
            self._output.seek(-_ID_BYTES * self._file_ids, os.SEEK_CUR)
            self._output.truncate()
        self.num_tokens -= self._file_tokens
        self.begin_file()

    def finish(self, num_bytes: int) -> None:
        """Write what is left, and report that all bytes of the files are done."""
        self._write_all()
        with self._writing():
            self._output.flush()
        if self._on_progress is not None:
            self._on_progress(num_bytes, self.num_tokens)

    def _ids_of(self, batch: Batch) -> NDArray[np.uint32]:
        parts = [self._encode(item) if isinstance(item, str) else item for item in batch.items]
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.uint32)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise GraphError(
                f"{self._path} can't be written ({error.strerror}); free space there, or name another path"
            ) from error

    def _write_all(self) -> None:
        while self._pending:
            self._write_oldest()

    def _write_oldest(self) -> None:
        oldest = self._pending.popleft()
        self._in_flight -= oldest.batch.size
        token_ids = oldest.token_ids.result()
        num_tokens = token_ids.size - oldest.batch.num_separators
        with self._writing():
            self._output.write(token_ids.astype("<u4", copy=False).data)
        self.num_tokens += num_tokens
        if oldest.file_number == self._file_number:
            self._file_ids += token_ids.size
            self._file_tokens += num_tokens
        if self._on_progress is not None:
            self._on_progress(oldest.batch.bytes_read, self.num_tokens)
