"""One ``draft()`` call while it runs, and the messages that were sent for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from speculant_graph.client.sessions import Session
from speculant_graph.errors import SpeculantError
from speculant_graph.types import EMPTY_DRAFT, Draft, SequenceStep


class InFlightBatch:
    """A batch of sequences, each of which waits for one replica or is resolved."""

    def __init__(self, steps: Sequence[SequenceStep], started_s: float, finished: Callable[[], None]) -> None:
        """Begin; ``finished`` is called once, when the last sequence is resolved in time."""
        self.steps = steps
        self.started_s = started_s
        self._finished = finished
        self.drafts: list[Draft] = [EMPTY_DRAFT] * len(steps)
        self.waiting: dict[int, int] = dict.fromkeys(range(len(steps)), -1)
        """Per sequence that is not resolved the replica it waits for."""
        self.num_exchanges = [0] * len(steps)
        self.answered: set[int] = set()
        """Replicas that answered in time."""
        self.failures: dict[int, SpeculantError | None] = {}
        """Per replica why sequences got no answer; None: it was not asked."""
        self.has_sent = False
        """Whether any replica was asked for anything."""
        self.is_answered = False
        """Whether any sequence was answered in time."""
        self.is_over = False
        """Whether the caller has gone on; what comes now is late."""

    def resolve(self, index: int, draft: Draft = EMPTY_DRAFT) -> None:
        """Note the draft of a sequence, which waits no more."""
        if self.waiting.pop(index, None) is None:
            return
        self.drafts[index] = draft
        if not self.waiting:
            self._finished()

    def fail(self, index: int, replica: int, error: SpeculantError | None) -> None:
        """Resolve a sequence without an answer."""
        if index in self.waiting:
            self.failures.setdefault(replica, error)
            self.resolve(index)


class Entry(NamedTuple):
    """One sequence of a message."""

    batch_index: int
    """In the batch; -1 if its answer is not waited for."""
    session: Session
    wire_id: int
    """The session's when it was sent."""
    start: int
    """Position of the first token sent."""
    end: int
    """Position after the last one."""

    @property
    def is_current(self) -> bool:
        """Whether the session is still the one that was sent."""
        return self.session.wire_id == self.wire_id


@dataclass(frozen=True, slots=True, eq=False)
class SentMessage:
    """A message that is not answered yet."""

    batch: InFlightBatch
    entries: list[Entry]
    budgets: list[int]
    """Most nodes per sequence."""
