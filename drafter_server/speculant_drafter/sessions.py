"""The open sessions and their graphs. The C++ core stores each session's position and chooses the sessions to evict.

This module does not depend on gRPC, and the clock is a parameter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from speculant_drafter.graphs import ServedGraph
from speculant_drafter.metrics import ServerMetrics
from speculant_graph._core import SessionTable
from speculant_graph.config import ServerConfig
from speculant_graph.draft.learning.learned_store import Memory
from speculant_graph.errors import DraftRequestError


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits for messages and sessions, in addition to ``server.max_session_memory``."""

    max_calls: int = 1_024
    """Maximum number of concurrent calls, including open streams."""
    max_message_bytes: int = 1 << 20
    """Maximum size of a received or sent message, in bytes."""
    max_sequences: int = 256
    """Maximum number of sequences in a step. A step is refused if it exceeds ``max_sequences``, ``max_tokens``,
    ``max_nodes`` or ``max_step_nodes``."""
    max_tokens: int = 262_144
    """Maximum number of context tokens in one message, for all its sequences."""
    max_nodes: int = 2_048
    """Maximum number of drafted nodes for one sequence."""
    max_step_nodes: int = 8_192
    """Maximum number of drafted nodes for all sequences of a step, because other clients wait for the step."""
    max_sessions: int = 10_000
    """Maximum number of open sessions. Beyond this number, the session that has been idle longest is dropped, if any
    session is idle."""
    idle_timeout_s: float = 600.0
    """Seconds without a step after which a session is dropped."""
    busy_s: float = 1.0
    """Seconds after a step during which its session is not dropped for a new session, which is refused instead."""


LIMITS = Limits()
"""Limits of every sidecar outside of tests."""


@dataclass(frozen=True, slots=True)
class OpenSession:
    """An open session."""

    graph: ServedGraph
    """The graph generation that the session drafts from; it never changes."""
    memory: Memory
    """The tenant's learned text, which stays in memory while the session is open."""


class SessionStore:
    """The open sessions."""

    def __init__(
        self,
        config: ServerConfig,
        metrics: ServerMetrics,
        clock: Callable[[], float],
        limits: Limits = LIMITS,
    ) -> None:
        """Make an empty store.

        Args:
            config: settings with the memory limit of all sessions together.
            metrics: counters of opened and ended sessions.
            clock: monotonic time in seconds.
            limits: maximum number of sessions, and timeouts.
        """
        self._metrics = metrics
        self._clock = clock
        self._sessions: dict[int, OpenSession] = {}
        self.table = SessionTable(
            max_sessions=limits.max_sessions,
            max_bytes=config.max_session_memory,
            idle_timeout_ns=_ns(limits.idle_timeout_s),
            busy_ns=_ns(limits.busy_s),
        )
        """The core's table of sessions. After every change of this table, call :meth:`resolve_ended`."""

    def __len__(self) -> int:
        """Number of sessions, including expired ones that are not dropped yet."""
        return len(self._sessions)

    def open(
        self,
        session_id: int,
        graph: ServedGraph,
        memory: Memory,
        *,
        learn: bool = False,
    ) -> OpenSession:
        """Open a session, or return the open session with this id.

        Args:
            session_id: id of the session.
            graph: the graph to draft from. A session that is already open keeps its graph generation.
            memory: learned text of the session's tenant.
            learn: whether later sessions of the tenant learn from this one.

        Raises:
            DraftRequestError: another session has this id.
            OverloadError: there is no capacity, and no session is idle.
        """
        is_open = self.table.use(session_id, self.now_ns())
        self.resolve_ended()
        if is_open:
            session = self._sessions[session_id]
            if (session.memory.tenant, session.graph.name) != (memory.tenant, graph.name):
                raise DraftRequestError("this session id is in use; choose another, at random for instance")
            return session
        try:
            self.table.open(
                session_id,
                graph.drafter.core,
                graph.generation,
                memory.tenant,
                memory.core,
                graph.drafter.learns(learn),
                self.now_ns(),
            )
        finally:
            self.resolve_ended()
        graph.count(1)
        self._metrics.opened_sessions.inc()
        session = self._sessions[session_id] = OpenSession(graph, memory)
        return session

    def find(self, session_id: int) -> OpenSession | None:
        """Return an open session, without counting the call as a use that resets its idle time."""
        return self._sessions.get(session_id)

    def num_by_graph(self) -> Counter[str]:
        """Return the number of sessions per graph name, over all generations; each layer of a session counts."""
        graphs = [session.graph for session in list(self._sessions.values())]
        return Counter(each.name for graph in graphs for each in graph.layers or (graph,))

    def end(self, session_id: int) -> None:
        """End a session; its accepted tokens are learned if it was opened with ``learn``."""
        self.table.end(session_id)
        self.resolve_ended()

    def sweep(self) -> None:
        """End the sessions that have been idle for too long."""
        self.table.sweep(self.now_ns())
        self.resolve_ended()

    def end_all(self) -> None:
        """End all sessions."""
        self.table.end_all()
        self.resolve_ended()

    def resolve_ended(self) -> None:
        """Count the sessions that ended in the core, and store their learned text."""
        for session_id, reason, learned in self.table.take_ended():
            self._metrics.ended_sessions.labels(reason).inc()
            session = self._sessions.pop(session_id, None)
            if session is None:  # it ended during its opening, because memory was full
                self._metrics.opened_sessions.inc()
                continue
            session.graph.count(-1)
            session.graph.drafter.learned.keep(session.memory, learned)

    def now_ns(self) -> int:
        """Return the clock's time in nanoseconds."""
        return round(self._clock() * 1e9)


def _ns(seconds: float) -> int:
    """Return a duration in nanoseconds, capped so that it fits in 64 bits."""
    return round(min(seconds * 1e9, 2.0**62))
