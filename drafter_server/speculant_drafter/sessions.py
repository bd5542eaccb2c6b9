"""What the sidecar remembers of a sequence between steps: where it stands, and its last few tokens.

Only accepted tokens are sent, so a session never rolls back. Tokens that were taken before are recognised by
their position and skipped, which makes every step safe to repeat. Tokens that contradict remembered ones mean
that client and session have diverged: the session is dropped, and SESSION_LOST makes the client send everything
again. What lies further back than the longest context is neither kept nor checked.

Knows neither gRPC nor graphs; time is passed in.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from speculant_graph.errors import DraftRequestError
from speculant_graph.rpc.messages import SequenceStatus
from speculant_graph.types import TokenId


@dataclass(slots=True)
class Session:
    """An open session."""

    tenant: str
    """Whose it is."""
    idle_timeout_s: float
    """It is lost after so long without a step."""
    last_used_s: float
    """Time of the last step."""
    position: int = 0
    """Number of tokens taken."""
    tail: tuple[TokenId, ...] = field(default=())
    """The last of them, as many as the longest context has."""


@dataclass(frozen=True, slots=True)
class Taken:
    """What became of the tokens of one step."""

    status: SequenceStatus
    """OK, SESSION_LOST or OUT_OF_SYNC."""
    next_position: int = 0
    """The position the session expects next."""
    context: tuple[TokenId, ...] = ()
    """The tokens before ``end``, at most as many as the longest context has; empty unless OK."""
    end: int = 0
    """Index of the first token to draft."""


_LOST = Taken(SequenceStatus.SESSION_LOST)


class SessionStore:
    """The open sessions, the longest idle first."""

    def __init__(self, max_order: int, *, max_sessions: int, idle_timeout_s: float, clock: Callable[[], float]) -> None:
        """Make an empty store.

        Args:
            max_order: longest context, in tokens.
            max_sessions: most open sessions; one more drops the longest idle.
            idle_timeout_s: sessions are dropped after so long without a step.
            clock: monotonic time in seconds.
        """
        self._max_order = max_order
        self._max_sessions = max_sessions
        self._idle_timeout_s = idle_timeout_s
        self._clock = clock
        self._sessions: OrderedDict[int, Session] = OrderedDict()

    def __len__(self) -> int:
        """Number of sessions held, those that are idle for too long but not yet dropped included."""
        return len(self._sessions)

    def open(self, session_id: int, tenant: str = "", idle_timeout_s: float | None = None) -> int:
        """Open a session, or find it open; return the position it expects next.

        Args:
            session_id: its id.
            tenant: whose it is.
            idle_timeout_s: a shorter idle timeout than the store's; longer ones are cut to it.

        Raises:
            DraftRequestError: the id is open for another tenant.
        """
        now_s = self._clock()
        self._drop_idle(now_s)
        session = self._find(session_id, now_s)
        if session is None:
            timeout_s = min(idle_timeout_s or self._idle_timeout_s, self._idle_timeout_s)
            session = self._sessions[session_id] = Session(tenant, timeout_s, now_s)
            while len(self._sessions) > self._max_sessions:
                self._sessions.popitem(last=False)
        elif session.tenant != tenant:
            raise DraftRequestError("this session id is in use; choose another, at random for instance")
        return session.position

    def close(self, session_id: int, tenant: str = "") -> None:
        """Drop a session; one that is unknown, or another tenant's, is ignored."""
        session = self._sessions.get(session_id)
        if session is not None and session.tenant == tenant:
            del self._sessions[session_id]

    def position(self, session_id: int) -> int:
        """Return the position a session expects next, 0 if it is unknown."""
        session = self._sessions.get(session_id)
        return 0 if session is None else session.position

    def take(self, session_id: int, position: int, token_ids: tuple[TokenId, ...]) -> Taken:
        """Take the tokens of one step and return the context to draft from.

        Args:
            session_id: an open session.
            position: index in the sequence of the first token.
            token_ids: tokens from there on; those that the session has taken before are skipped.
        """
        session = self._find(session_id, self._clock())
        if session is None:
            return _LOST
        if position > session.position:
            return Taken(SequenceStatus.OUT_OF_SYNC, session.position)
        tail_start = session.position - len(session.tail)
        end = position + len(token_ids)
        overlap = slice(max(position, tail_start), min(end, session.position))
        remembered = session.tail[overlap.start - tail_start : max(overlap.stop - tail_start, 0)]
        if remembered != token_ids[overlap.start - position : overlap.start - position + len(remembered)]:
            del self._sessions[session_id]
            return _LOST
        if end < session.position:
            return self._look_back(session, position, token_ids)
        session.tail = (session.tail + token_ids[session.position - position :])[-self._max_order :]
        session.position = end
        return Taken(SequenceStatus.OK, end, session.tail, end)

    def _look_back(self, session: Session, position: int, token_ids: tuple[TokenId, ...]) -> Taken:
        """Answer the late repeat of an earlier step, if its context can still be put together."""
        end = position + len(token_ids)
        tail_start = session.position - len(session.tail)
        context = session.tail[: max(position - tail_start, 0)] + token_ids
        if len(context) >= min(self._max_order, end):
            return Taken(SequenceStatus.OK, session.position, context[-self._max_order :], end)
        return Taken(SequenceStatus.OUT_OF_SYNC, session.position)

    def _find(self, session_id: int, now_s: float) -> Session | None:
        session = self._sessions.get(session_id)
        if session is None:
            return None
        if now_s - session.last_used_s > session.idle_timeout_s:
            del self._sessions[session_id]
            return None
        session.last_used_s = now_s
        self._sessions.move_to_end(session_id)
        return session

    def _drop_idle(self, now_s: float) -> None:
        # Sessions with a shorter timeout of their own go when they are met again, or here like the others.
        while self._sessions:
            session_id, session = next(iter(self._sessions.items()))
            if now_s - session.last_used_s <= self._idle_timeout_s:
                return
            del self._sessions[session_id]
