"""An asyncio client of one or several sidecars."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Self, TypeVar, Unpack

from speculant_graph.client.fleet import ClientOptions, client_of
from speculant_graph.errors import SpeculantError
from speculant_graph.types import Draft, DrafterState, DrafterStatistics, SequenceStep, SessionOptions

if TYPE_CHECKING:
    from speculant_graph.config import ClientConfig

_T = TypeVar("_T")


class AsyncDrafterClient:
    """An asyncio version of :class:`~speculant_graph.client.DrafterClient`; it works with any event loop.

    Examples:
        >>> async with AsyncDrafterClient(config, tokenizer=None, draft=DraftConfig()) as client:
        ...     await client.open(1)
        ...     [draft] = await client.draft([SequenceStep(1, [17, 4, 9], node_budget=8)])
    """

    def __init__(self, config: ClientConfig, **options: Unpack[ClientOptions]) -> None:
        """Make a client with the options of :class:`DrafterClient`; it connects when it opens the first session.

        Raises:
            ConfigError: an address is malformed, credentials can't be used, or ``draft`` has a setting that only the
                sidecar can set.
        """
        self._client = client_of(config, **options)

    @property
    def state(self) -> DrafterState:
        """Whether the drafter answered the last step."""
        return self._client.state

    @property
    def statistics(self) -> DrafterStatistics:
        """Counts of steps, drafts and failures since the client was made."""
        return self._client.statistics

    async def open(self, session_id: int, options: SessionOptions | None = None) -> str | None:
        """Open a session; see :meth:`DrafterClient.open`."""
        return await _awaited(partial(self._client.submit_open, session_id, options), self._client.open_deadline_s)

    async def draft(self, steps: Sequence[SequenceStep]) -> list[Draft]:
        """Return drafts for a batch within the deadline; raise an error only if the task is cancelled."""
        return await _awaited(partial(self._client.submit, steps), self._client.deadline_s)

    async def finish(self, session_id: int) -> None:
        """End a session without waiting for the drafter."""
        self._client.finish(session_id)

    async def close(self) -> None:
        """Close all sessions and the connection. Closing waits at most as long as opening a session may take."""
        await asyncio.to_thread(self._client.close)

    async def __aenter__(self) -> Self:
        """Return the client."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the client."""
        await self.close()


async def _awaited(submit: Callable[[Callable[[], None]], Callable[[], _T]], timeout_s: float) -> _T:
    """Submit a call, await its end or the timeout, then collect its result; a cancelled task also collects it."""
    loop = asyncio.get_running_loop()
    over = loop.create_future()

    def resolve() -> None:
        if not over.done():
            over.set_result(None)

    def finished() -> None:
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(resolve)

    timer = loop.call_later(timeout_s, resolve)
    collect = submit(finished)
    try:
        await over
    except asyncio.CancelledError:
        with suppress(SpeculantError):
            collect()
        raise
    finally:
        timer.cancel()
    return collect()
