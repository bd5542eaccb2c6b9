"""Which sessions are open, where they stand, and which must go when there are too many.

Only accepted tokens are sent, so a session never rolls back: it has a position, and what comes must go on from there.
What a session holds is kept by the drafter of its graph. Knows neither gRPC nor the clock: time is passed in.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable

from speculant_drafter.counts import ServerCounts, SessionEnd
from speculant_drafter.graphs import ServedGraph
from speculant_graph.config import ServerConfig
from speculant_graph.draft.cost import CostCurve
from speculant_graph.draft.views import Handles
from speculant_graph.errors import DraftLimitError, DraftRequestError
from speculant_graph.graph.layout import Int64Array
from speculant_graph.rpc.kernels.sessions import (
    DRAFTED,
    GRAPH,
    IDLE_TIMEOUT,
    IS_PLAIN,
    LAST_USED,
    POSITION,
    STEPS,
    TENANT,
    SessionRows,
)
from speculant_graph.rpc.messages import SequenceStatus

_LONGEST_NS = 1 << 62


class Session:
    """An open session. Its numbers are a row of the table that kernels work on."""

    __slots__ = (
        "_row",
        "_table",
        "graph",
        "handles",
        "is_in_prompt",
        "is_watched",
        "num_bytes",
        "offered_id",
        "session_id",
        "tenant",
    )

    def __init__(self, session_id: int, graph: ServedGraph, tenant: str, table: SessionRows, row: int) -> None:
        """Make a session of a row that was taken for it."""
        self._table = table
        self._row = row
        self.session_id = session_id
        """Its number, the client's choice."""
        self.graph = graph
        """The generation that it was opened on and keeps."""
        self.tenant = tenant
        """Whose it is."""
        self.num_bytes = 0
        """Memory it takes."""
        self.offered_id = 0
        """Its latest draft that the graph's drafter knows of, so that feedback on it can be placed."""
        self.is_watched = False
        """Whether feedback comes on its drafts, so that the drafter must know of them all."""
        self.is_in_prompt = True
        """Whether no draft was asked for yet: a prompt may come in several steps."""
        self.handles: Handles | None = None
        """What of it a kernel may change, if it is plain."""

    @property
    def row(self) -> Int64Array:
        """Its row of the table."""
        row: Int64Array = self._table.rows[self._row]
        return row

    @property
    def position(self) -> int:
        """Number of tokens taken."""
        return int(self._table.rows[self._row, POSITION])

    @property
    def last_used_ns(self) -> int:
        """Time of the last step."""
        return int(self._table.rows[self._row, LAST_USED])

    @property
    def idle_timeout_ns(self) -> int:
        """It is lost after so long without a step."""
        return int(self._table.rows[self._row, IDLE_TIMEOUT])

    @property
    def num_steps(self) -> int:
        """Steps answered."""
        return int(self._table.rows[self._row, STEPS])

    @property
    def num_drafted(self) -> int:
        """Nodes drafted."""
        return int(self._table.rows[self._row, DRAFTED])

    def use(self, now_ns: int) -> None:
        """Note that it is used."""
        self._table.rows[self._row, LAST_USED] = now_ns

    def note_taken(self, num_tokens: int) -> None:
        """Note tokens that were taken."""
        self._table.rows[self._row, POSITION] += num_tokens

    def note_draft(self, draft_id: int, num_nodes: int) -> None:
        """Note a draft that the graph's drafter knows of."""
        self.offered_id = draft_id
        row = self.row
        row[STEPS] += 1
        row[DRAFTED] += num_nodes

    def take_from_kernel(self) -> None:
        """Keep kernels off it: what it holds may move. Undone by :meth:`let_kernel_go_on`, if nothing fails before."""
        self._table.rows[self._row, IS_PLAIN] = 0

    def let_kernel_go_on(self) -> None:
        """Find out whether a kernel may serve it from here."""
        known = (
            None
            if self.is_watched or self.is_in_prompt
            else self.graph.drafter.plain_handles(self.session_id, self.handles)
        )
        table, row = self._table, self._row
        if known is not None and known is not self.handles:
            table.handles[row] = known.values
        table.rows[row, IS_PLAIN] = known is not None
        self.handles = known

    def release(self) -> None:
        """Give its row back."""
        self._table.remove(self._row)


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
        self._tenant_numbers: dict[str, int] = {}  # of those that have sessions
        self._num_by_tenant: Counter[str] = Counter()
        self._new_tenant_numbers = itertools.count()
        self.table = SessionRows()
        """What kernels work on."""
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
        session = Session(session_id, graph, tenant, self.table, self.table.add(session_id))
        timeout_s = min(idle_timeout_s or self._config.idle_timeout_s, self._config.idle_timeout_s)
        row = session.row
        if tenant not in self._tenant_numbers:
            self._tenant_numbers[tenant] = next(self._new_tenant_numbers)
        self._num_by_tenant[tenant] += 1
        row[GRAPH], row[TENANT] = graph.generation, self._tenant_numbers[tenant]
        row[IDLE_TIMEOUT] = min(round(timeout_s * 1e9), _LONGEST_NS)
        session.use(self._now_ns())
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
        session.use(now_ns)
        return session

    def num_by_graph(self) -> Counter[str]:
        """Return how many sessions there are by the name of their graph, of all its generations."""
        numbers: Counter[str] = Counter()
        for graph in self._graphs.values():
            numbers[graph.name] += graph.num_sessions
        return numbers

    def tenant_number(self, tenant: str) -> int | None:
        """Return the number that stands for a tenant in the table; None if it has no session."""
        return self._tenant_numbers.get(tenant)

    def graph_of_generation(self, generation: int) -> ServedGraph:
        """Return the graph of this generation, which has sessions."""
        return self._graphs[generation]

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
        self._num_by_tenant[session.tenant] -= 1
        if not self._num_by_tenant[session.tenant]:
            del self._num_by_tenant[session.tenant], self._tenant_numbers[session.tenant]
        self._counts.end_session(reason)
        self._on_end(session, reason)
        session.release()

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
        session_id = self.table.longest_idle(None if spared is None else spared.session_id)
        longest = None if session_id is None else self._sessions[session_id]
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
