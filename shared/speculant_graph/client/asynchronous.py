"""The asyncio client of drafter sidecars."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self

from speculant_graph.client.base import OPEN_GRACE_S, SidecarClient
from speculant_graph.client.sessions import Opening
from speculant_graph.types import EMPTY_DRAFT, Draft, SequenceStep, SessionOptions


class AsyncDrafterClient(SidecarClient):
    """:class:`~speculant_graph.client.blocking.DrafterClient` for tasks: what that waits for by a lock, this awaits.

    Example:
        >>> async with AsyncDrafterClient(config, tokenizer=None, draft=DraftConfig()) as client:
        ...     await client.open(1)
        ...     [draft] = await client.draft([SequenceStep(1, [17, 4, 9], node_budget=8)])
    """

    async def open(self, session_id: int, options: SessionOptions | None = None) -> str | None:
        """Begin a session; see the blocking client."""
        bell = _Bell()
        opening = self._begin_open(session_id, options, bell.ring)
        if isinstance(opening, Opening):
            await bell.wait(self._open_deadline_s + OPEN_GRACE_S)
        return self._end_open(opening, options)

    async def draft(self, steps: Sequence[SequenceStep]) -> list[Draft]:
        """Draft for a batch within the deadline; never raises, except if it is cancelled itself."""
        bell = _Bell()
        batch = self._begin(steps, bell.ring)
        if batch is None:
            return [EMPTY_DRAFT] * len(steps)
        try:
            await bell.wait(self._remaining_s(batch))
        finally:  # also when the caller is cancelled
            drafts = self._end(batch)
        return drafts

    async def finish(self, session_id: int) -> None:
        """End a session without waiting for the drafter."""
        self._finish(session_id)

    async def close(self) -> None:
        """End all sessions, the streams and the connections; waits for drafters no longer than for an opening."""
        await asyncio.to_thread(self._close)

    async def __aenter__(self) -> Self:
        """Return itself."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close."""
        await self.close()


class _Bell:
    """Wakes a task from any thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._rung = self._loop.create_future()

    def ring(self) -> None:
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._resolve)

    async def wait(self, timeout_s: float) -> None:
        """Wait for the bell, but not for ever; cheaper than a task of asyncio's own."""
        timer = self._loop.call_later(timeout_s, self._resolve)
        try:
            await self._rung
        finally:
            timer.cancel()

    def _resolve(self) -> None:
        if not self._rung.done():
            self._rung.set_result(None)
