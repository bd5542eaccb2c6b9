"""Records of a client's sessions, and of the actions that these sessions require.

This module only keeps records; it does not send or wait.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from speculant_graph.client.breaker import Breaker, is_refusal, retry_delay_s
from speculant_graph.errors import DraftRequestError, SpeculantError, UnknownGraphError
from speculant_graph.rpc.step_messages import OpenRequest, OpenResponse
from speculant_graph.types import DrafterStatistics, Feedback, SequenceStep, SessionOptions, TokenId

if TYPE_CHECKING:
    from speculant_graph.client.batches import InFlightBatch

ENDED = DraftRequestError("the session was ended while its step ran")
"""Error of a step whose session was ended while the step ran."""
_NUM_ROUND_TRIPS_KEPT = 1_000
_TAIL_TOKENS = 16
_MAX_WIRE_TOKEN = (1 << 32) - 1


@dataclass
class Counts:
    """Running counts of a drafter; the fields are those of :class:`~speculant_graph.types.DrafterStatistics`."""

    steps: int = 0
    failed_steps: int = 0
    drafted_nodes: int = 0
    reopened_sessions: int = 0
    skipped_steps: int = 0
    late_answers: int = 0
    round_trip_s: deque[float] = field(default_factory=lambda: deque(maxlen=_NUM_ROUND_TRIPS_KEPT))
    last_failure: str = ""

    def snapshot(self) -> DrafterStatistics:
        """Return the current counts."""
        return DrafterStatistics(**vars(self) | {"round_trip_s": tuple(self.round_trip_s)})


def _as_list(token_ids: Sequence[TokenId]) -> list[TokenId]:
    """Return tokens as a list; converting an array to a list is several times faster than to a tuple."""
    return token_ids.tolist() if isinstance(token_ids, np.ndarray) else list(token_ids)


@dataclass(slots=True, eq=False)
class Session:
    """Client-side state of the drafter's copy of one sequence.

    A session's id on the wire identifies one text. When the drafter's copy is discarded, the session gets a new wire
    id, so that answers for the old text are recognized.
    """

    wire_id: int
    options: SessionOptions = field(default_factory=SessionOptions)
    """Options for opening the session; they override the client's settings."""
    is_open: bool = False
    opening: Opening | None = None
    """The session's running OpenSession call, if any."""
    position: int = 0
    """Number of tokens that the drafter has confirmed."""
    num_sent: int = 0
    """Number of tokens sent to the drafter, at least ``position``."""
    tail: list[TokenId] = field(default_factory=list)
    """The last tokens that were sent to the drafter. If a step has different tokens at the same positions, the
    session's text has changed."""
    draft_id: int = 0
    """Id of the latest draft received; 0 if none."""
    was_lost: bool = False
    """Whether the drafter lost the session, so that the next opening counts as a reopening."""
    retry_after_s: float = 0.0
    """Earliest time to open the session again, after the drafter refused to open it."""

    def restart(self, wire_id: int) -> None:
        """Treat the drafter's copy of the sequence as discarded, and use a new wire id."""
        self.wire_id = wire_id
        self.is_open, self.opening = False, None
        self.position = self.num_sent = self.draft_id = 0
        self.tail = []

    def holds_another_text(self, step: SequenceStep) -> bool:
        """Return whether the tokens sent so far differ from the start of the step's sequence."""
        sent = self.num_sent
        if sent > len(step.token_ids):
            return True
        return _as_list(step.token_ids[sent - len(self.tail) : sent]) != self.tail

    def record_sent(self, step: SequenceStep) -> None:
        """Record that the whole sequence of a step is being sent."""
        self.num_sent = len(step.token_ids)
        self.tail = _as_list(step.token_ids[-_TAIL_TOKENS:])

    def fitting_feedback(self, feedback: Feedback | None) -> Feedback | None:
        """Return feedback if it is valid and belongs to the session's latest draft, otherwise None."""
        if feedback is None or feedback.draft_id != self.draft_id or not self.draft_id:
            return None
        rows = feedback.rows
        if rows.ndim != 2 or len(rows) != len(feedback.nodes) or not rows.size:
            return None
        return feedback if rows.min() >= 0 and rows.max() <= _MAX_WIRE_TOKEN else None


@dataclass(slots=True, eq=False)
class Opening:
    """A call of OpenSession, from its start until its outcome is recorded."""

    session: Session
    request: OpenRequest
    started_s: float
    waiting: list[tuple[InFlightBatch, int]] = field(default_factory=list)
    """Sequences that continue when the session is open, each as a batch and an index in that batch."""
    callbacks: list[Callable[[], None]] = field(default_factory=list)
    """Functions to call when the opening has succeeded or failed."""
    is_over: bool = False
    error: SpeculantError | None = None
    """The error of the opening, if it failed."""


@dataclass(frozen=True, slots=True)
class Send:
    """Action: send bytes on the stream, in order; start a stream if there is none."""

    payload: bytes


@dataclass(frozen=True, slots=True)
class DropStream:
    """Action: cancel the stream, if there is one, and ignore its later messages."""


@dataclass(frozen=True, slots=True)
class OpenSession:
    """Action: call OpenSession, and report the outcome to the core."""

    opening: Opening


@dataclass(frozen=True, slots=True)
class CloseSession:
    """Action: call CloseSession, without waiting for the outcome."""

    wire_id: int
    tenant: str


@dataclass(frozen=True, slots=True)
class Report:
    """Action: write a line to the log."""

    level: Literal["INFO", "WARNING"]
    text: str


Action = Send | DropStream | OpenSession | CloseSession | Report


class SessionRegistry:
    """Opens, restarts and closes the sessions of one client, by the caller's ids."""

    def __init__(
        self,
        breaker: Breaker,
        actions: list[Action],
        counts: Counts,
        *,
        request: OpenRequest,
        wire_ids: Callable[[], int],
    ) -> None:
        """Make an empty registry.

        Args:
            breaker: the client's breaker.
            actions: list to which actions are appended.
            counts: counters to update.
            request: template of the request that opens a session; every session sets its own id.
            wire_ids: returns session ids that no other client uses.
        """
        self._breaker, self._actions, self._counts = breaker, actions, counts
        self._request, self._wire_ids = request, wire_ids
        self._sessions: dict[int, Session] = {}

    def session(self, session_id: int, options: SessionOptions | None = None) -> Session:
        """Return the session of a caller's id; an unknown id gets a new session with these options."""
        session = self._sessions.get(session_id)
        if session is None:
            session = self._sessions[session_id] = Session(self._wire_ids(), options or SessionOptions())
        return session

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
        """Close a session on the drafter; it can be reopened with another text."""
        if session.is_open:
            self._close(session.wire_id, self._opening_request(session).tenant)
        session.restart(self._wire_ids())

    def record_lost(self, session: Session) -> None:
        """Record that the drafter no longer has a session."""
        session.restart(self._wire_ids())
        session.was_lost = True

    def begin_opening(self, session: Session, now_s: float) -> Opening:
        """Return the session's running opening, or start an opening."""
        if session.opening is None:
            session.opening = Opening(session, self._opening_request(session), now_s)
            self._actions.append(OpenSession(session.opening))
        return session.opening

    def record_opened(self, opening: Opening, outcome: OpenResponse | SpeculantError, now_s: float) -> None:
        """Record the outcome of opening a session."""
        session = opening.session
        error = outcome if isinstance(outcome, SpeculantError) else None
        if isinstance(error, UnknownGraphError) and session.options.graph is None:  # no session will get drafts
            graph = self._request.graph
            unserved = f"names '{graph}', which" if graph else "is unset, and the default graph is one that"
            error = DraftRequestError(
                f"{{field}} {unserved} the drafter does not serve to this client",
                fix="name one that it serves",
                field="client.graph",
            )
        opening.is_over, opening.error = True, error
        if session.opening is not opening:
            opening.error = ENDED
            if error is None:
                self._close(opening.request.session_id, opening.request.tenant)
            return
        session.opening = None
        session.is_open = error is None
        if error is None:
            self._counts.reopened_sessions += session.was_lost
            session.was_lost = False
        elif is_refusal(error):
            session.retry_after_s = now_s + retry_delay_s(error)

    def _opening_request(self, session: Session) -> OpenRequest:
        wanted = session.options
        return replace(
            self._request,
            session_id=session.wire_id,
            tenant=self._request.tenant if wanted.tenant is None else wanted.tenant,
            graph=self._request.graph if wanted.graph is None else wanted.graph,
            learn=self._request.learn if wanted.learn is None else wanted.learn,
        )

    def _close(self, wire_id: int, tenant: str) -> None:
        if not self._breaker.is_down:  # in a drafter that is down, sessions expire
            self._actions.append(CloseSession(wire_id, tenant))


def new_wire_id() -> int:
    """Return a random session id for the wire, because ids of two clients must not collide in a drafter."""
    return secrets.randbits(64) or 1
