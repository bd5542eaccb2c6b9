"""The sessions of one client: which replica each is assigned to, and its opening, moving and ending."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from speculant_graph.client.actions import Action, CloseSession, OpenSession
from speculant_graph.client.counts import Counts
from speculant_graph.client.placement import preferred
from speculant_graph.client.replica import Replica, is_refusal, retry_delay_s
from speculant_graph.client.sessions import Opening, Session
from speculant_graph.errors import DraftRequestError, SpeculantError
from speculant_graph.rpc.messages import OpenAnswer, OpenRequest
from speculant_graph.types import SessionOptions

ENDED = DraftRequestError("the session was ended, or moved, while its step ran")
"""Why a step gets no answer that is no longer wanted."""


class SessionRegistry:
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
        """Make an empty registry.

        Args:
            replicas: where sessions may be.
            actions: what is to be done is appended here.
            counts: what happens to sessions is counted here.
            request: what every session is opened with, but for its id.
            wire_ids: makes session ids that no other client uses.
            pause_s: how long a session that was refused is not opened again, if the drafter gives no delay.
        """
        self._replicas, self._actions, self._counts = replicas, actions, counts
        self._request, self._wire_ids, self._pause_s = request, wire_ids, pause_s
        self._sessions: dict[int, Session] = {}

    def session(self, session_id: int, options: SessionOptions | None = None) -> Session:
        """Return the session of a caller's id; one that is not known begins, with these options."""
        session = self._sessions.get(session_id)
        if session is None:
            session = self._sessions[session_id] = Session(self._wire_ids(), options=options or SessionOptions())
            session.replica = self._best_replica(session).index
        return session

    def assigned_replica(self, session: Session) -> Replica:
        """Return a session's replica, after moving it if that is down and another one is not."""
        replica = self._replicas[session.replica]
        if not replica.is_down:
            return replica
        best = self._best_replica(session)
        if best.is_down:
            return replica
        session.restart(self._wire_ids())
        session.replica, session.was_lost, session.retry_after_s = best.index, False, 0.0
        self._counts.failovers += 1
        return best

    def finish(self, session_id: int) -> None:
        """End a session; unknown ids are ignored."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self.restart(session)

    def finish_all(self) -> None:
        """End all sessions."""
        for session_id in list(self._sessions):
            self.finish(session_id)

    def restart(self, session: Session) -> None:
        """Close a session at its replica; it may begin again, with another text."""
        if session.is_open:
            self._close(self._replicas[session.replica], session.wire_id, self._opening_request(session).tenant)
        session.restart(self._wire_ids())

    def note_lost(self, session: Session) -> None:
        """Note that the replica does not have a session any more."""
        session.restart(self._wire_ids())
        session.was_lost = True

    def begin_opening(self, session: Session, now_s: float) -> Opening:
        """Return the opening that is under way, or begin one."""
        if session.opening is None:
            session.opening = Opening(session, session.replica, self._opening_request(session), now_s)
            self._actions.append(OpenSession(session.opening))
        return session.opening

    def note_opened(self, opening: Opening, outcome: OpenAnswer | SpeculantError, now_s: float) -> None:
        """Note the outcome of an opening."""
        session, replica = opening.session, self._replicas[opening.replica]
        error = outcome if isinstance(outcome, SpeculantError) else None
        opening.is_over, opening.error = True, error
        if isinstance(outcome, OpenAnswer):
            replica.vocabulary_size = outcome.tokenizer.vocabulary_size
        if session.opening is not opening:
            opening.error = ENDED
            if error is None:
                self._close(replica, opening.request.session_id, opening.request.tenant)
            return
        session.opening = None
        session.is_open = error is None
        if error is None:
            self._counts.reopened_sessions += session.was_lost
            session.was_lost = False
        elif is_refusal(error):
            session.retry_after_s = now_s + retry_delay_s(error, self._pause_s)

    def _best_replica(self, session: Session) -> Replica:
        """Return the replica that a session prefers of those that are up, if any is."""
        if len(self._replicas) == 1:
            return self._replicas[0]
        up = [replica for replica in self._replicas if not replica.is_down] or self._replicas
        by_address = {replica.address: replica for replica in up}
        return by_address[preferred(session.placement_key, by_address)]

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
        if not replica.is_down:
            self._actions.append(CloseSession(replica.index, wire_id, tenant))
