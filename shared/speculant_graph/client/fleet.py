"""A drafter made of several sidecars, with one client per sidecar."""

from __future__ import annotations

import secrets
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NotRequired, Self, TypedDict, Unpack

from loguru import logger

from speculant_graph.client.drafter_client import DrafterClient, blocking
from speculant_graph.client.placement import placed_at
from speculant_graph.errors import SpeculantError
from speculant_graph.rpc.addresses import host_name, is_name, lasting_name, lookup, plain_address, split_addresses
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

LOOK_UP_S = 5.0
"""Seconds between two lookups of a DNS name, about the usual TTL of DNS answers in clusters."""
_COUNTS = ("steps", "failed_steps", "drafted_nodes", "reopened_sessions", "skipped_steps", "late_answers")


class ClientOptions(TypedDict):
    """Arguments of a client; see :class:`DrafterClient`."""

    tokenizer: Fingerprint | None
    draft: DraftConfig
    strict: NotRequired[bool]
    wants_proposals: NotRequired[bool]


def client_of(config: ClientConfig, **options: Unpack[ClientOptions]) -> DrafterClient | SidecarFleet:
    """Return a client for the configured addresses: a fleet for several addresses or a DNS name.

    Raises:
        ConfigError: an address is malformed, credentials can't be used, or ``draft`` has a setting that only the
            sidecar can set.
    """
    addresses = split_addresses(config.address)
    if len(addresses) > 1 or is_name(addresses[0]):
        return SidecarFleet(config, **options)
    return DrafterClient(config, **options)


@dataclass(frozen=True, slots=True)
class _Placed:
    """The client that a session is placed on, and the session's options."""

    client: DrafterClient
    options: SessionOptions | None


class SidecarFleet:
    """Requests drafts from several sidecars. Each tenant uses one sidecar, or another one while the first is paused.

    One sidecar thus learns all of a tenant's text, even if the tenant uses several clients (:mod:`.placement`).
    A random key of the client decides which sidecar serves its sessions without a tenant. Without tenants, each client
    thus uses one sidecar, which learns the client's text, and clients spread evenly over the sidecars. Every step
    contains the whole sequence, so a session can move to another sidecar without a transfer of state. Thread-safe.
    """

    def __init__(self, config: ClientConfig, **options: Unpack[ClientOptions]) -> None:
        """Make a fleet of the sidecars at the configured addresses.

        DNS names are resolved when the fleet is made, and again every five seconds in a thread. If a DNS name loses an
        address, the sidecar at that address gets no new sessions, but keeps its open sessions while it answers. If
        sidecars have stable DNS names, as the pods of a StatefulSet do, the fleet places tenants by these names. With a
        stable DNS name, a sidecar keeps its tenants when its IP address changes.

        Raises:
            ConfigError: an address is malformed, credentials can't be used, or ``draft`` has a setting that only the
                sidecar can set.
        """
        self._config, self._options = config, options
        self._own_key = secrets.token_hex(8)
        self._lock = threading.Lock()
        self._sessions: dict[int, _Placed] = {}
        self._look_up_lock = threading.Lock()
        self._found: dict[str, tuple[str, ...]] = {}  # resolved addresses, by configured address
        self._names: dict[str, str] = {}  # placement names, by address
        self._leaving: dict[str, DrafterClient] = {}
        self._left = DrafterStatistics()
        self.clients: Mapping[str, DrafterClient] = {}
        """Clients of the sidecars that get new sessions, by address. The mapping is never changed in place, only
        replaced as a whole."""
        self.lookup(names=False)  # not to wait here for a network that does not answer
        first = next(iter(self.clients.values()))
        self.capabilities = first.capabilities
        """Capabilities of the drafting strategy."""
        self.deadline_s, self.open_deadline_s = first.deadline_s, first.open_deadline_s
        """Two maximum waiting times, in seconds: for the drafts of a step, and for the opening of a session."""
        self._is_over = threading.Event()
        if any(map(is_name, split_addresses(config.address))):
            threading.Thread(target=self._watch, name="speculant-fleet-names", daemon=True).start()

    @property
    def state(self) -> DrafterState:
        """Whether any sidecar answered its last step."""
        return "ok" if any(client.state == "ok" for client in self.clients.values()) else "unavailable"

    @property
    def statistics(self) -> DrafterStatistics:
        """Sums of the counts of all sidecars; a step counts once for each sidecar that drafts for part of it."""
        with self._lock:
            counts = {address: client.statistics for address, client in (*self._leaving.items(), *self.clients.items())}
            current = [counts[address] for address in self.clients]
            summed = _sum([self._left, *counts.values()])
        return DrafterStatistics(
            **summed,
            num_paused=sum(each.num_paused for each in current),
            round_trip_s=tuple(time_s for each in counts.values() for time_s in each.round_trip_s),
            last_failure="; ".join(f"{at}: {each.last_failure}" for at, each in counts.items() if each.last_failure),
        )

    def open(self, session_id: int, options: SessionOptions | None = None) -> str | None:
        """Open a session; see :meth:`DrafterClient.open`."""
        return blocking(partial(self.submit_open, session_id, options), self.open_deadline_s)

    def draft(self, steps: Sequence[SequenceStep]) -> list[Draft]:
        """Return drafts for a batch within the deadline, from all sidecars in parallel; never raise an error."""
        return blocking(partial(self.submit, steps), self.deadline_s)

    def submit_open(
        self, session_id: int, options: SessionOptions | None, finished: Callable[[], None]
    ) -> Callable[[], str | None]:
        """Start opening a session as in :meth:`open`, without waiting; see :meth:`DrafterClient.submit_open`."""
        return self._client_for(session_id, options).submit_open(session_id, options, finished)

    def submit(self, steps: Sequence[SequenceStep], finished: Callable[[], None]) -> Callable[[], list[Draft]]:
        """Start drafting as in :meth:`draft`, without waiting; see :meth:`DrafterClient.submit_open`."""
        for client in self.clients.values():
            client.probe()  # a paused sidecar may have no sessions left, so no steps that would probe it
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
        """Ignore the pass report, and return a drafting time of 0 s, because drafting takes little time."""
        return 0.0

    def finish(self, session_id: int) -> None:
        """End a session without waiting for its sidecar."""
        with self._lock:
            placed = self._sessions.pop(session_id, None)
        if placed is not None:
            placed.client.finish(session_id)

    def close(self) -> None:
        """End all sessions and close all clients."""
        self._is_over.set()
        with self._lock:
            clients = [*self.clients.values(), *self._leaving.values()]
        for client in clients:
            client.close()

    def __enter__(self) -> Self:
        """Return the client."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the client."""
        self.close()

    def lookup(self, *, names: bool = True) -> None:
        """Look up every address, and add or remove sidecars accordingly.

        A DNS name that can't be resolved keeps its last addresses. If the name was never resolved, the name itself is
        used as the address.

        Args:
            names: whether to also look up stable names for addresses that have none yet.

        Raises:
            ConfigError: the constructor would raise this error, too.
        """
        with self._look_up_lock:
            for address in split_addresses(self._config.address):
                found = lookup(address) or self._found.get(address) or (plain_address(address),)
                self._found[address] = found
            wanted = {each: host_name(address) for address, found in self._found.items() for each in found}
            known = {**self._leaving, **self.clients}
            known |= {each: self._client(each, name) for each, name in wanted.items() if each not in known}
            lasting = {each: self._names.get(each, each) for each in wanted}
            if names:
                new = (each for each, name in wanted.items() if name and lasting[each] == each)
                lasting |= {each: lasting_name(each) for each in new}
            with self._lock:
                self.clients = {each: known.pop(each) for each in wanted}
                self._names = _unique(lasting)
                used = {placed.client for placed in self._sessions.values()}
                self._leaving = {each: client for each, client in known.items() if client in used}
                unused = [client for client in known.values() if client not in used]
                self._left = DrafterStatistics(**_sum([self._left, *(client.statistics for client in unused)]))
        for client in unused:
            client.close()

    def _client(self, address: str, name: str) -> DrafterClient:
        config = self._config.model_copy(update={"address": address})
        return DrafterClient(config, host_name=name, **self._options)

    def _watch(self) -> None:
        while not self._is_over.is_set():
            try:
                self.lookup()
            except SpeculantError as error:  # a certificate that is being replaced, for example
                logger.warning("the fleet keeps its sidecars: {}", error)
            self._is_over.wait(LOOK_UP_S)

    def _client_for(self, session_id: int, options: SessionOptions | None = None) -> DrafterClient:
        """Return the client of a session; move the session first if its sidecar is paused and another is not."""
        with self._lock:
            placed = self._sessions.get(session_id)
            if placed is not None and not placed.client.is_paused:
                return placed.client
            options = placed.options if placed is not None else options
            tenant = self._config.tenant if options is None or options.tenant is None else options.tenant
            key = tenant or self._own_key
            awake = {self._names[at]: each for at, each in self.clients.items() if not each.is_paused}
            if placed is not None and not awake:
                return placed.client
            places = awake or {self._names[at]: each for at, each in self.clients.items()}
            client = places[placed_at(key, places)]
            self._sessions[session_id] = _Placed(client, options)
        if placed is not None:
            placed.client.finish(session_id)
            client.submit_open(session_id, options, _nothing)  # its step is sent after the opening
        return client


def _unique(names: Mapping[str, str]) -> dict[str, str]:
    """Return the placement name of each address.

    If several addresses share a name, each address serves as its own placement name.
    """
    counts = Counter(names.values())
    return {address: name if counts[name] == 1 else address for address, name in names.items()}


def _sum(counts: Sequence[DrafterStatistics]) -> dict[str, Any]:
    return {name: sum(getattr(each, name) for each in counts) for name in _COUNTS}


def _last_of(count: int, finished: Callable[[], None]) -> Callable[[], None]:
    """Return a thread-safe function that calls ``finished`` on its ``count``-th call."""
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
    """Do nothing when the opening of a session ends, because no caller waits for it."""
