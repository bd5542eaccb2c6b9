"""The sessions of one client: where each belongs, and its opening, moving and ending."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from speculant_graph.client.actions import Action, CloseSession, OpenSession
from speculant_graph.client.counts import Counts
from speculant_graph.client.placement import preferred
from speculant_graph.client.replica import Replica, is_refusal
from speculant_graph.client.sessions import Opening, Session
from speculant_graph.errors import DrafterUnavailableError, DraftLimitError, DraftRequestError, SpeculantError
from speculant_graph.rpc.messages import OpenAnswer, OpenRequest
from speculant_graph.types import SessionOptions

ENDED = DraftRequestError("the session was ended, or moved, while its step ran")
"""Why a step gets no answer that somebody else no longer wanted."""

_HELD_BY_OTHERS = DrafterUnavailableError("the drafter says that it holds more than it was sent; restart it")


class SessionBook:
    """Sessions by the caller's ids. A session stays at its replica until that is down and another one is not."""

    def __init__(
        self,
        replicas: Sequence[Replica],
        actions: list[Action],
        counts: Counts,
        *,
        request: OpenRequest,
        wire_ids: Callable[[], int],
        pause_s: float,
    ) -> None:
        """Make an empty book.

        Args:
            replicas: where sessions may be.
            actions: what is to be done is appended here.
            counts: what happens to sessions is counted here.
            request: what every session is opened with, but for its id.
            wire_ids: makes session ids that nobody else uses.
            pause_s: how long a session that was refused is not opened again, if the drafter does not say.
        """
        self._replicas, self._actions, self._counts = replicas, actions, counts
        self._request, self._wire_ids, self._pause_s = request, wire_ids, pause_s
        self._sessions: dict[int, Session] = {}

    def session(self, session_id: int, options: SessionOptions | None = None) -> Session:
        """Return the session of a caller's id; one that is not known begins, with these options."""
        session = self._sessions.get(session_id)
        if session is None:
            session = self._sessions[session_id] = Session(self._wire_ids(), 0, options=options or SessionOptions())
            session.replica = self._best(session).index
        return session

    def home(self, session: Session) -> Replica:
        """Return a session's replica, after moving it if that is down and another one is not."""
        replica = self._replicas[session.replica]
        if not replica.breaker.is_open:
            return replica
        best = self._best(session)
        if best.breaker.is_open:
            return replica
        session.reset()
        session.replica, session.was_lost, session.rests_until_s = best.index, False, 0.0
        self._counts.failovers += 1
        return best

    def finish(self, session_id: int) -> None:
        """End a session; unknown ids are ignored."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._give_up(session)

    def finish_all(self) -> None:
        """End all sessions."""
        for session_id in list(self._sessions):
            self.finish(session_id)

    def renew(self, session: Session) -> None:
        """Make a session one of another text, which gets an id of its own: what is under way can't get into it."""
        self._give_up(session)
        session.wire_id = self._wire_ids()

    def begin_opening(self, session: Session) -> Opening:
        """Return the opening that is under way, or begin one."""
        if session.opening is None:
            request = self._opening_request(session)
            session.opening = Opening(session, session.replica, request)
            self._actions.append(OpenSession(session.opening))
        return session.opening

    def note_opened(self, opening: Opening, outcome: OpenAnswer | SpeculantError, now_s: float) -> bool:
        """Note the outcome of an opening; return whether it is over, with ``error`` set if it failed.

        If the replica holds something under the session's id that this client has given up, it is not over: the
        session is opened under another id.
        """
        session, replica = opening.session, self._replicas[opening.replica]
        error = outcome if isinstance(outcome, SpeculantError) else None
        if session.opening is not opening:
            if error is None:
                self._close(replica, opening.request.session_id, opening.request.tenant)
            opening.is_over, opening.error = True, ENDED
            return True
        if isinstance(outcome, OpenAnswer):
            if outcome.next_position > 0 and not opening.is_repeated:
                self._open_afresh(opening)
                return False
            error = _HELD_BY_OTHERS if outcome.next_position > 0 else None
            replica.vocabulary_size = outcome.tokenizer.vocabulary_size
        session.opening = None
        session.is_open = error is None
        if error is None:
            self._counts.reopened_sessions += session.was_lost
            session.was_lost = False
        elif is_refusal(error):
            delay_s = error.retry_delay_s if isinstance(error, DraftLimitError) else 0.0
            session.rests_until_s = now_s + (delay_s or self._pause_s)
        opening.is_over, opening.error = True, error
        return True

    def _best(self, session: Session) -> Replica:
        """Return where a session belongs: to the replica it prefers of those that are alive, if any is."""
        if len(self._replicas) == 1:
            return self._replicas[0]
        alive = [replica for replica in self._replicas if not replica.breaker.is_open] or self._replicas
        by_address = {replica.address: replica for replica in alive}
        return by_address[preferred(session.placement, by_address)]

    def _open_afresh(self, opening: Opening) -> None:
        session = opening.session
        self._close(self._replicas[opening.replica], session.wire_id, opening.request.tenant)
        session.wire_id = self._wire_ids()
        opening.request = self._opening_request(session)
        opening.is_repeated = True
        self._actions.append(OpenSession(opening))

    def _give_up(self, session: Session) -> None:
        if session.is_open:
            self._close(self._replicas[session.replica], session.wire_id, self._opening_request(session).tenant)
        session.reset()

    def _opening_request(self, session: Session) -> OpenRequest:
        wanted = session.options
        return replace(
            self._request,
            session_id=session.wire_id,
            tenant=self._request.tenant if wanted.tenant is None else wanted.tenant,
            graph=self._request.graph if wanted.graph is None else wanted.graph,
            learn=self._request.learn if wanted.learn is None else wanted.learn,
        )

    def _close(self, replica: Replica, wire_id: int, tenant: str) -> None:
        # A drafter that is down drops its sessions itself, in time.
        if not replica.breaker.is_open:
            self._actions.append(CloseSession(replica.index, wire_id, tenant))
