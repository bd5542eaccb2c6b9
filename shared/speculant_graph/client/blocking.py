"""The blocking client of drafter sidecars."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from speculant_graph.client.base import OPEN_GRACE_S, SidecarClient
from speculant_graph.client.sessions import Opening
from speculant_graph.types import EMPTY_DRAFT, Draft, SequenceStep, SessionOptions


class DrafterClient(SidecarClient):
    """Drafts from sidecars. May be shared between threads, but not with a process that is forked later.

    In such a process it drafts nothing, as threads and connections are its parent's.

    Example:
        >>> config = ClientConfig(address="unix:///tmp/speculant-drafter/drafter.sock")
        >>> with DrafterClient(config, tokenizer=None, draft=DraftConfig()) as client:
        ...     client.open(1)
        ...     [draft] = client.draft([SequenceStep(1, [17, 4, 9], node_budget=8)])
    """

    def open(self, session_id: int, options: SessionOptions | None = None) -> str | None:
        """Begin a session; if the drafter does not answer, its first steps try again.

        Args:
            session_id: the caller's id.
            options: what this session wants beside the client's settings.

        Returns:
            Why the session gets no drafts, if its options are the reason.

        Raises:
            TokenizerMismatchError: the drafter's graph is of another tokenizer.
            SpeculantError: the session can't be opened, and the client is strict.
        """
        lock = _held_lock()
        opening = self._begin_open(session_id, options, lock.release)
        if isinstance(opening, Opening):
            lock.acquire(timeout=self._open_deadline_s + OPEN_GRACE_S)
        return self._end_open(opening, options)

    def draft(self, steps: Sequence[SequenceStep]) -> list[Draft]:
        """Draft for a batch within the deadline; never raises."""
        lock = _held_lock()
        batch = self._begin(steps, lock.release)
        if batch is None:
            return [EMPTY_DRAFT] * len(steps)
        lock.acquire(timeout=self._remaining_s(batch))
        return self._end(batch)

    def finish(self, session_id: int) -> None:
        """End a session without waiting for the drafter."""
        self._finish(session_id)

    def close(self) -> None:
        """End all sessions, the streams and the connections; waits for drafters no longer than for an opening."""
        self._close()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()


def _held_lock() -> threading.Lock:
    """Return a lock to wait at, the quickest way to wake a thread."""
    lock = threading.Lock()
    lock.acquire()
    return lock
