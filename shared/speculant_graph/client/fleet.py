"""Several sidecars as one drafter, by a client of each; what decides between one and several; and both for asyncio."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NotRequired, Self, TypedDict, TypeVar, Unpack

from speculant_graph.client.drafter_client import DrafterClient, blocking
from speculant_graph.errors import SpeculantError
from speculant_graph.rpc.addresses import split_addresses
from speculant_graph.types import (
    EMPTY_DRAFT,
    Draft,
    DrafterState,
    DrafterStatistics,
    Fingerprint,
    PassReport,
    SequenceStep,
    SessionOptions,
)

if TYPE_CHECKING:
    from speculant_graph.config import ClientConfig, DraftConfig

_T = TypeVar("_T")


class ClientOptions(TypedDict):
    """What clients are made with, as :class:`DrafterClient` explains it."""

    tokenizer: Fingerprint | None
    draft: DraftConfig
    strict: NotRequired[bool]
    wants_proposals: NotRequired[bool]


def client_of(config: ClientConfig, **options: Unpack[ClientOptions]) -> DrafterClient | SidecarFleet:
    """Return the client of the addresses in the settings: of one sidecar, or of several.

    Raises:
        ConfigError: an address is malformed, credentials can't be used, or a setting is the sidecar's own.
    """
    clients = {
        address: DrafterClient(config.model_copy(update={"address": address}), **options)
        for address in split_addresses(config.address)
    }
    return SidecarFleet(clients) if len(clients) > 1 else next(iter(clients.values()))


@dataclass(frozen=True, slots=True)
class _Placed:
    """Where a session is."""

    client: DrafterClient
    options: SessionOptions | None


class SidecarFleet:
    """Drafts from several sidecars: a session stays with one of them, and moves when that is paused.

    A session goes to the first sidecar that is not paused, in an order of its own: without a common table clients
    spread sessions evenly, and when a sidecar goes only its own sessions move. As every step brings the whole sequence,
    nothing has to be carried over. May be shared between threads.
    """

    def __init__(self, clients: dict[str, DrafterClient]) -> None:
        """Make a fleet.

        Args:
            clients: of its sidecars, by address; closed with the fleet.
        """
        self.clients = clients
        """Of the sidecars, by address."""
        first = next(iter(clients.values()))
        self.capabilities = first.capabilities
        """What their drafts are like."""
        self.deadline_s, self.open_deadline_s = first.deadline_s, first.open_deadline_s
        """How long a step and an opening are waited for."""
        self._lock = threading.Lock()
        self._sessions: dict[int, _Placed] = {}

    @property
    def state(self) -> DrafterState:
        """Whether the last step of any sidecar was answered."""
        return "ok" if any(client.state == "ok" for client in self.clients.values()) else "unavailable"

    @property
    def statistics(self) -> DrafterStatistics:
        """Counts of all sidecars together: a step counts once for each that was asked."""
        counts = {address: client.statistics for address, client in self.clients.items()}
        names = ("steps", "failed_steps", "drafted_nodes", "reopened_sessions", "skipped_steps", "late_answers")
        return DrafterStatistics(
            **{name: sum(getattr(each, name) for each in counts.values()) for name in names},
            is_paused=all(each.is_paused for each in counts.values()),
            round_trip_s=tuple(time_s for each in counts.values() for time_s in each.round_trip_s),
            last_failure="; ".join(f"{at}: {each.last_failure}" for at, each in counts.items() if each.last_failure),
        )

    def open(self, session_id: int, options: SessionOptions | None = None) -> str | None:
        """Begin a session; see :meth:`DrafterClient.open`."""
        return blocking(partial(self.submit_open, session_id, options), self.open_deadline_s)

    def draft(self, steps: Sequence[SequenceStep]) -> list[Draft]:
        """Draft for a batch within the deadline, at all sidecars at a time; never raises."""
        return blocking(partial(self.submit, steps), self.deadline_s)

    def submit_open(
        self, session_id: int, options: SessionOptions | None, finished: Callable[[], None]
    ) -> Callable[[], str | None]:
        """Do the first half of :meth:`open`; see :meth:`DrafterClient.submit_open`."""
        return self._client_for(session_id, options).submit_open(session_id, options, finished)

    def submit(self, steps: Sequence[SequenceStep], finished: Callable[[], None]) -> Callable[[], list[Draft]]:
        """Do the first half of :meth:`draft`; see :meth:`DrafterClient.submit_open`."""
        for client in self.clients.values():
            client.probe()  # no step of a session that has moved does it
        parts: defaultdict[DrafterClient, list[int]] = defaultdict(list)
        for index, step in enumerate(steps):
            parts[self._client_for(step.session_id)].append(index)
        if not parts:
            finished()
        part_finished = _last_of(len(parts), finished)
        collects = [
            (indices, client.submit([steps[index] for index in indices], part_finished))
            for client, indices in parts.items()
        ]

        def collect() -> list[Draft]:
            drafts = [EMPTY_DRAFT] * len(steps)
            for indices, collect_part in collects:
                for index, draft in zip(indices, collect_part(), strict=True):
                    drafts[index] = draft
            return drafts

        return collect

    def observe(self, report: PassReport) -> float:
        """Do nothing: drafts take little time."""
        return 0.0

    def finish(self, session_id: int) -> None:
        """End a session without waiting for its sidecar."""
        with self._lock:
            placed = self._sessions.pop(session_id, None)
        if placed is not None:
            placed.client.finish(session_id)

    def close(self) -> None:
        """End all sessions and close all clients."""
        for client in self.clients.values():
            client.close()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def _client_for(self, session_id: int, options: SessionOptions | None = None) -> DrafterClient:
        """Return the client of a session, which moves if its sidecar is paused and another one is not."""
        with self._lock:
            placed = self._sessions.get(session_id)
            if placed is not None and not placed.client.is_paused:
                return placed.client
            ranked = sorted(self.clients, key=lambda address: _rank(address, session_id))
            first = next((at for at in ranked if not self.clients[at].is_paused), None)
            if placed is not None and first is None:
                return placed.client
            client = self.clients[first or ranked[0]]
            options = placed.options if placed is not None else options
            self._sessions[session_id] = _Placed(client, options)
        if placed is not None:
            placed.client.finish(session_id)
            client.submit_open(session_id, options, _nothing)  # with its options; its step follows when that is done
        return client


class AsyncDrafterClient:
    """:class:`~speculant_graph.client.DrafterClient` for tasks, of any event loop.

    Examples:
        >>> async with AsyncDrafterClient(config, tokenizer=None, draft=DraftConfig()) as client:
        ...     await client.open(1)
        ...     [draft] = await client.draft([SequenceStep(1, [17, 4, 9], node_budget=8)])
    """

    def __init__(self, config: ClientConfig, **options: Unpack[ClientOptions]) -> None:
        """Make a client, with the options of the threaded one; it connects when the first session is opened.

        Raises:
            ConfigError: an address is malformed, credentials can't be used, or a setting is the sidecar's own.
        """
        self._client = client_of(config, **options)

    @property
    def state(self) -> DrafterState:
        """Whether the last step was answered."""
        return self._client.state

    @property
    def statistics(self) -> DrafterStatistics:
        """Counts since the client was made."""
        return self._client.statistics

    async def open(self, session_id: int, options: SessionOptions | None = None) -> str | None:
        """Begin a session; see the threaded client."""
        return await _awaited(partial(self._client.submit_open, session_id, options), self._client.open_deadline_s)

    async def draft(self, steps: Sequence[SequenceStep]) -> list[Draft]:
        """Draft for a batch within the deadline; never raises, except if it is cancelled itself."""
        return await _awaited(partial(self._client.submit, steps), self._client.deadline_s)

    async def finish(self, session_id: int) -> None:
        """End a session without waiting for the drafter."""
        self._client.finish(session_id)

    async def close(self) -> None:
        """End all sessions and the connection; waits for the drafter no longer than for an opening."""
        await asyncio.to_thread(self._client.close)

    async def __aenter__(self) -> Self:
        """Return itself."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close."""
        await self.close()


def _rank(address: str, session_id: int) -> bytes:
    """Return the place of a sidecar in the order of a session: the same in every process, even over sessions."""
    return hashlib.blake2b(f"{address} {session_id}".encode(), digest_size=8).digest()


def _last_of(count: int, finished: Callable[[], None]) -> Callable[[], None]:
    """Return what calls ``finished`` when it is called for the last of several times, by any threads."""
    lock = threading.Lock()

    def count_down() -> None:
        nonlocal count
        with lock:
            count -= 1
            is_last = count == 0
        if is_last:
            finished()

    return count_down


def _nothing() -> None:
    """Do nothing: nobody waits."""


async def _awaited(submit: Callable[[Callable[[], None]], Callable[[], _T]], timeout_s: float) -> _T:
    """Wait between the two halves of what a client does, also if the task is cancelled meanwhile."""
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
