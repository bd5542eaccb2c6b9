"""A client's record of its sessions, and what of a sequence must travel.

Pure bookkeeping: nothing here sends or waits.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from speculant_graph.client.placement import key_of
from speculant_graph.errors import SpeculantError, UnknownGraphError
from speculant_graph.rpc.messages import OpenRequest
from speculant_graph.types import Feedback, SequenceStep, SessionOptions, TokenId

if TYPE_CHECKING:
    from speculant_graph.client.batches import InFlightBatch

_TAIL_TOKENS = 16
_MAX_WIRE_TOKEN = (1 << 32) - 1


def new_wire_id() -> int:
    """Return a session id for the wire, at random: clients that count 1, 2, 3 must never meet in a drafter."""
    return secrets.randbits(64) or 1


def problem_of(options: SessionOptions | None, error: SpeculantError | None) -> str | None:
    """Return why a session gets no drafts, if its options are the reason.

    Args:
        options: what it wanted.
        error: why it was not opened, if it was not.
    """
    if options is None or not options.graph or not isinstance(error, UnknownGraphError):
        return None
    return f"there were no drafts, as the drafter serves no graph '{options.graph}'; name one that it serves"


@dataclass(slots=True, eq=False)
class Session:
    """One sequence, at the replica that holds it.

    A wire id stands for one text at one replica: whenever what a replica holds is given up, the next id is another one,
    so that answers about the old one are known to be old.
    """

    wire_id: int
    replica: int = 0
    """Index of the replica it is assigned to."""
    options: SessionOptions = field(default_factory=SessionOptions)
    """What it is opened with, beside what the client sets."""
    is_open: bool = False
    opening: Opening | None = None
    """Under way, if not None."""
    position: int = 0
    """What the replica is known to have taken."""
    num_sent: int = 0
    """What it may have taken; never less than ``position``."""
    tail: tuple[TokenId, ...] = ()
    """The last tokens of those, by which another text shows."""
    draft_id: int = 0
    """The latest draft received; 0 for none."""
    was_lost: bool = False
    """Whether the replica has lost it, so that its opening is one more."""
    retry_after_s: float = 0.0
    """No opening before this time: the replica has refused one."""

    @property
    def placement_key(self) -> int:
        """What decides which replica it is assigned to."""
        wanted = self.options
        return self.wire_id if wanted.conversation is None else key_of(wanted.tenant or "", wanted.conversation)

    def restart(self, wire_id: int) -> None:
        """Give up what the replica holds of it, for another id."""
        self.wire_id = wire_id
        self.is_open, self.opening = False, None
        self.position = self.num_sent = self.draft_id = 0
        self.tail = ()

    def holds_another_text(self, step: SequenceStep) -> bool:
        """Return whether what was sent is no beginning of a step's sequence."""
        sent = self.num_sent
        if sent > len(step.token_ids):
            return True
        return tuple(step.token_ids[sent - len(self.tail) : sent]) != self.tail

    def note_sent(self, step: SequenceStep) -> None:
        """Note that the whole sequence of a step is on its way."""
        self.num_sent = len(step.token_ids)
        self.tail = tuple(step.token_ids[-_TAIL_TOKENS:])

    def fitting_feedback(self, feedback: Feedback | None) -> Feedback | None:
        """Return feedback if it is about the latest draft of the replica that holds the session, and can travel."""
        if feedback is None or feedback.draft_id != self.draft_id or not self.draft_id:
            return None
        rows = feedback.rows
        if rows.ndim != 2 or len(rows) != len(feedback.nodes) or not rows.size:
            return None
        return feedback if rows.min() >= 0 and rows.max() <= _MAX_WIRE_TOKEN else None


@dataclass(slots=True, eq=False)
class Opening:
    """A call of OpenSession, from its start until its outcome is noted."""

    session: Session
    replica: int
    request: OpenRequest
    started_s: float
    waiting: list[tuple[InFlightBatch, int]] = field(default_factory=list)
    """Sequences of batches that go on when it succeeds."""
    callbacks: list[Callable[[], None]] = field(default_factory=list)
    """Called at its end."""
    is_over: bool = False
    error: SpeculantError | None = None
    """Why it failed."""
