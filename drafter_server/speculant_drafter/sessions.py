"""Which sessions are open, on which graphs; their positions, and which must go, are in the core.

Depends on neither gRPC nor the clock: time is passed in.
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
    """What a message may ask for and how long sessions stay, besides ``server.max_session_memory``."""

    max_calls: int = 1_024
    """Most calls at a time; an open stream is one."""
    max_message_bytes: int = 1 << 20
    """Largest message taken or sent."""
    max_sequences: int = 256
    """Most sequences of a step; one beyond is refused, here and below."""
    max_tokens: int = 262_144
    """Most context tokens."""
    max_nodes: int = 2_048
    """Most nodes drafted for one sequence."""
    max_step_nodes: int = 8_192
    """Most nodes drafted for all of them; other clients wait for it meanwhile."""
    max_sessions: int = 10_000
    """Most open sessions; beyond it the longest idle one is dropped, if it is idle at all."""
    idle_timeout_s: float = 600.0
    """Sessions without a step for so long are dropped."""
    busy_s: float = 1.0
    """A session that had a step within so many seconds is never dropped for another, which is refused instead."""


LIMITS = Limits()
"""Those of every sidecar but in tests."""


@dataclass(frozen=True, slots=True)
class OpenSession:
    """An open session."""

    graph: ServedGraph
    """The generation that it was opened on and keeps."""
    memory: Memory
    """Its tenant's, which is kept as long."""


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
            config: the memory of all sessions.
            metrics: where openings and endings are counted.
            clock: monotonic time in seconds.
            limits: their number, and when they go.
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
        """The sessions as steps see them; :meth:`resolve_ended` is called after whatever changes it."""

    def __len__(self) -> int:
        """Number of sessions held, those that are idle for too long but not yet dropped included."""
        return len(self._sessions)

    def open(
        self,
        session_id: int,
        graph: ServedGraph,
        memory: Memory,
        *,
        learn: bool = False,
    ) -> OpenSession:
        """Open a session, or find it open.

        Args:
            session_id: its id.
            graph: what it drafts from. A session that is open keeps the generation that it has.
            memory: its tenant's.
            learn: whether later sessions of the tenant learn from it.

        Raises:
            DraftRequestError: the id is another session's.
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
        """Return an open session without using it."""
        return self._sessions.get(session_id)

    def num_by_graph(self) -> Counter[str]:
        """Return how many sessions there are by the name of each graph that they draft from, of all its generations."""
        graphs = [session.graph for session in list(self._sessions.values())]
        return Counter(each.name for graph in graphs for each in graph.layers or (graph,))

    def end(self, session_id: int) -> None:
        """End a session; what it accepted is learned if it was opened so."""
        self.table.end(session_id)
        self.resolve_ended()

    def sweep(self) -> None:
        """End the sessions that are idle for too long."""
        self.table.sweep(self.now_ns())
        self.resolve_ended()

    def end_all(self) -> None:
        """End all sessions."""
        self.table.end_all()
        self.resolve_ended()

    def resolve_ended(self) -> None:
        """Count the sessions that ended in the core, and keep what they taught."""
        for session_id, reason, learned in self.table.take_ended():
            self._metrics.ended_sessions.labels(reason).inc()
            session = self._sessions.pop(session_id, None)
            if session is None:  # its memory was full when it was opened
                self._metrics.opened_sessions.inc()
                continue
            session.graph.count(-1)
            session.graph.drafter.learned.keep(session.memory, learned)

    def now_ns(self) -> int:
        """Return the time."""
        return round(self._clock() * 1e9)


def _ns(seconds: float) -> int:
    """Return nanoseconds that 64 bits hold, whatever a client requests."""
    return round(min(seconds * 1e9, 2.0**62))
