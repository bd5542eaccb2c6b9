"""One ``draft()`` call while it runs, and the messages that were sent for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from speculant_graph.client.sessions import Session
from speculant_graph.errors import SpeculantError
from speculant_graph.types import EMPTY_DRAFT, Draft, SequenceStep


class Round:
    """A batch of sequences, each of which waits for one replica or is settled."""

    __slots__ = (
        "_finished",
        "answered",
        "drafts",
        "failures",
        "has_sent",
        "is_answered",
        "is_over",
        "num_exchanges",
        "started_s",
        "steps",
        "waiting",
    )

    def __init__(self, steps: Sequence[SequenceStep], started_s: float, finished: Callable[[], None]) -> None:
        """Begin; ``finished`` is called once, when the last sequence is settled in time."""
        self.steps = steps
        self.started_s = started_s
        self._finished = finished
        self.drafts: list[Draft] = [EMPTY_DRAFT] * len(steps)
        self.waiting: dict[int, int] = dict.fromkeys(range(len(steps)), -1)
        """Per sequence that is not settled the replica it waits for."""
        self.num_exchanges = [0] * len(steps)
        self.answered: set[int] = set()
        """Replicas that were heard in time."""
        self.failures: dict[int, SpeculantError | None] = {}
        """Per replica why sequences got no answer; None: it was not asked."""
        self.has_sent = False
        """Whether any replica was asked for anything."""
        self.is_answered = False
        """Whether any sequence was answered in time."""
        self.is_over = False
        """Whether the caller has gone on; what comes now is late."""

    def settle(self, index: int) -> None:
        """Note that a sequence waits no more."""
        if self.waiting.pop(index, None) is not None and not self.waiting:
            self._finished()

    def fail(self, index: int, replica: int, error: SpeculantError | None) -> None:
        """Settle a sequence without an answer."""
        if index in self.waiting:
            self.failures.setdefault(replica, error)
            self.settle(index)


class Entry(NamedTuple):
    """One sequence of a message."""

    place: int
    """In the round's batch; -1 if nobody waits for its answer."""
    session: Session
    epoch: int
    """The session's when it was sent."""
    start: int
    """Position of the first token sent."""
    end: int
    """Position after the last one."""


@dataclass(slots=True, eq=False)
class SentStep:
    """A message that is not answered yet."""

    round: Round
    entries: list[Entry] = field(default_factory=list)
    budgets: list[int] = field(default_factory=list)
    """Most nodes per sequence."""
