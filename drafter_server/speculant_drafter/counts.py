"""What the sidecar counts of itself: plain integers, so that a step pays next to nothing for it."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

STEP_BOUNDS_S = (50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 20e-3, 50e-3)
"""Upper bounds of the histogram of answer times, seconds; one more bucket has no bound."""

SessionEnd = Literal["closed", "idle", "limit", "memory", "diverged"]
"""Why a session ended: its client closed it, it was idle for too long, it made space for another one (count or memory),
or its tokens contradicted what was known."""


@dataclass(slots=True)
class ServerCounts:
    """Counters since the start. Only the event loop writes to them; other threads may read."""

    steps: int = 0
    sequences: int = 0
    drafted_nodes: int = 0
    empty_drafts: int = 0
    failed_steps: Counter[str] = field(default_factory=Counter)
    """Steps that were refused or failed, by the name of their status."""
    opened_sessions: int = 0
    refused_openings: Counter[str] = field(default_factory=Counter)
    """Sessions that were not opened, by the name of the status."""
    ended_sessions: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(get_args(SessionEnd), 0)))
    """By :data:`SessionEnd`."""
    step_seconds: float = 0.0
    step_buckets: list[int] = field(default_factory=lambda: [0] * (len(STEP_BOUNDS_S) + 1))

    def observe_step(self, seconds: float, num_sequences: int) -> None:
        """Count a step that was answered.

        Args:
            seconds: from its arrival to its answer.
            num_sequences: sequences of its batch.
        """
        self.steps += 1
        self.sequences += num_sequences
        self.step_seconds += seconds
        self.step_buckets[bisect_left(STEP_BOUNDS_S, seconds)] += 1


@dataclass(frozen=True, slots=True)
class ServerState:
    """What the sidecar holds at one moment."""

    graphs: Sequence[tuple[str, int, int]] = ()
    """Per served graph its name, its generation, and the sessions that draft from it."""
    session_bytes: int = 0
    """Memory of all sessions."""
    learned_tokens: int = 0
    """Tokens of all tenants in the learned store."""
    is_failing_to_learn: bool = False
    """Whether what was learned can't be brought to disk at present."""
