"""Which sessions are open, where they stand, and which must go when there are too many.

Only accepted tokens are sent, so a session never rolls back: it has a position, and what comes must go on from there.
What a session holds is kept by the drafter of its graph. Knows neither gRPC nor the clock: time is passed in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from speculant_drafter.counts import ServerCounts, SessionEnd
from speculant_drafter.graphs import ServedGraph
from speculant_graph.config import ServerConfig
from speculant_graph.draft.cost import CostCurve
from speculant_graph.errors import DraftLimitError, DraftRequestError
from speculant_graph.graph.layout import Int64Array
from speculant_graph.rpc.messages import SequenceStatus


class Session:
    """An open session."""

    __slots__ = (
        "graph",
        "idle_timeout_ns",
        "is_in_prompt",
        "last_used_ns",
        "num_bytes",
        "num_drafted",
        "num_steps",
        "offered_id",
        "position",
        "session_id",
        "tenant",
    )

    def __init__(self, session_id: int, graph: ServedGraph, tenant: str, idle_timeout_ns: int, now_ns: int) -> None:
        """Make a session."""
        self.session_id = session_id
        """Its number, the client's choice."""
        self.graph = graph
        """The generation that it was opened on and keeps."""
        self.tenant = tenant
        """Whose it is."""
        self.idle_timeout_ns = idle_timeout_ns
        """It is lost after so long without a step."""
        self.last_used_ns = now_ns
        """Time of the last step."""
        self.position = 0
        """Number of tokens taken."""
        self.num_steps, self.num_drafted = 0, 0
        """Steps answered, and nodes drafted."""
        self.num_bytes = 0
        """Memory it takes."""
        self.offered_id = 0
        """Its latest draft, so that feedback on it can be placed."""
        self.is_in_prompt = True
        """Whether no draft was asked for yet: a prompt may come in several steps."""

    def note_draft(self, draft_id: int, num_nodes: int) -> None:
        """Note a draft that the graph's drafter knows of."""
        self.offered_id = draft_id
        self.num_steps += 1
        self.num_drafted += num_nodes


class SessionStore:
    """The open sessions."""

    def __init__(
        self,
        config: ServerConfig,
        counts: ServerCounts,
        clock: Callable[[], float],
        on_end: Callable[[Session, SessionEnd], None] = lambda session, reason: None,
    ) -> None:
        """Make an empty store.

        Args:
            config: limits.
            counts: where openings and endings are counted.
            clock: monotonic time in seconds.
            on_end: told of every session that ends, and why.
        """
        self._config = config
        self._counts = counts
        self._clock = clock
        self._on_end = on_end
        self._sessions: dict[int, Session] = {}
        self._graphs: dict[int, ServedGraph] = {}
        self.num_bytes = 0
        """Memory of all sessions."""

    def __len__(self) -> int:
        """Number of sessions held, those that are idle for too long but not yet dropped included."""
        return len(self._sessions)

    def open(
        self,
        session_id: int,
        graph: ServedGraph,
        tenant: str = "",
        *,
        idle_timeout_s: float | None = None,
        learn: bool = False,
        cost: CostCurve | None = None,
    ) -> Session:
        """Open a session, or find it open.

        Args:
            session_id: its number.
            graph: what it drafts from. A session that is open keeps the generation that it has.
            tenant: whose it is.
            idle_timeout_s: a shorter idle timeout than the server's; longer ones are cut to it.
            learn: whether later sessions of the tenant learn from it.
            cost: what verifying costs the client.

        Raises:
            DraftRequestError: the number is another session's.
            DraftLimitError: there is no room, and nobody is idle.
        """
        session = self.find(session_id)
        if session is not None:
            if (session.tenant, session.graph.name) != (tenant, graph.name):
                raise DraftRequestError("this session id is in use; choose another, at random for instance")
            return session
        if len(self._sessions) >= self._config.max_sessions:
            self._drop_longest_idle("limit", f"{self._config.max_sessions} sessions are open; close some")
        graph.drafter.open(session_id, tenant=tenant, learn=learn, cost=cost)
        graph.num_sessions += 1
        self._graphs[graph.generation] = graph
        timeout_s = min(idle_timeout_s or self._config.idle_timeout_s, self._config.idle_timeout_s)
        session = Session(session_id, graph, tenant, round(timeout_s * 1e9), self._now_ns())
        self._sessions[session_id] = session
        self._counts.opened_sessions += 1
        self.account(session)
        return session

    def find(self, session_id: int) -> Session | None:
        """Return an open session and note that it is used; None if there is none, or it was idle for too long."""
        session = self._sessions.get(session_id)
        if session is None:
            return None
        now_ns = self._now_ns()
        if now_ns - session.last_used_ns > session.idle_timeout_ns:
            self.end(session, "idle")
            return None
        session.last_used_ns = now_ns
        return session

    def num_by_graph(self) -> Counter[str]:
        """Return how many sessions there are by the name of their graph, of all its generations."""
        numbers: Counter[str] = Counter()
        for graph in self._graphs.values():
            numbers[graph.name] += graph.num_sessions
        return numbers

    def look_at(self, session_id: int) -> Session | None:
        """Return an open session without using it."""
        return self._sessions.get(session_id)

    def end(self, session: Session, reason: SessionEnd = "closed") -> None:
        """End a session; what it accepted is learned if it was opened so."""
        if self._sessions.pop(session.session_id, None) is None:
            return
        self.num_bytes -= session.num_bytes
        session.graph.drafter.close(session.session_id)
        session.graph.num_sessions -= 1
        if not session.graph.num_sessions:
            del self._graphs[session.graph.generation]
        self._counts.end_session(reason)
        self._on_end(session, reason)

    def account(self, session: Session) -> None:
        """Note the memory that a session takes now, and let idle ones go if all together take too much.

        Raises:
            DraftLimitError: they do, and nobody is idle; this session has ended.
        """
        num_bytes = session.graph.drafter.num_bytes(session.session_id)
        self.num_bytes += num_bytes - session.num_bytes
        session.num_bytes = num_bytes
        while self.num_bytes > self._config.max_session_memory:
            try:
                self._drop_longest_idle("memory", "the memory for sessions is full; send shorter sequences", session)
            except DraftLimitError:
                self.end(session, "memory")
                raise

    def sweep(self) -> None:
        """End the sessions that are idle for too long."""
        now_ns = self._now_ns()
        for session in [each for each in self._sessions.values() if now_ns - each.last_used_ns > each.idle_timeout_ns]:
            self.end(session, "idle")

    def end_all(self, reason: SessionEnd = "closed") -> None:
        """End all sessions."""
        for session in list(self._sessions.values()):
            self.end(session, reason)

    def _now_ns(self) -> int:
        return round(self._clock() * 1e9)

    def _drop_longest_idle(self, reason: SessionEnd, complaint: str, spared: Session | None = None) -> None:
        others = [session for session in self._sessions.values() if session is not spared]
        longest = min(others, key=lambda session: session.last_used_ns, default=None)
        busy_ns = round(self._config.busy_s * 1e9)
        idle_ns = 0 if longest is None else self._now_ns() - longest.last_used_ns
        if longest is None or idle_ns < busy_ns:
            delay_s = max((busy_ns - idle_ns) * 1e-9, 0.001)
            raise DraftLimitError(f"{complaint}, or try again in {delay_s:.3g} s", delay_s)
        self.end(longest, reason)


def take(session: Session, position: int, tokens: Int64Array) -> tuple[SequenceStatus, Int64Array]:
    """Find out what of the tokens of a step is new to a session.

    Args:
        session: the session, which is not changed.
        position: index in the sequence of the first token.
        tokens: tokens from there on, shape ``[n]``.

    Returns:
        OK and the tokens not yet taken. OUT_OF_SYNC if the tokens leave a gap, or end before what was taken, as those
        of a step do that was sent again too late. SESSION_LOST if they contradict what was taken.
    """
    if position == session.position:
        return SequenceStatus.OK, tokens
    if position > session.position:
        return SequenceStatus.OUT_OF_SYNC, tokens[:0]
    if not session.graph.drafter.agrees(session.session_id, position, tokens):
        return SequenceStatus.SESSION_LOST, tokens[:0]
    if position + tokens.size < session.position:
        return SequenceStatus.OUT_OF_SYNC, tokens[:0]
    return SequenceStatus.OK, tokens[session.position - position :]
