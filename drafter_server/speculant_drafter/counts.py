"""What the sidecar counts of itself: plain integers, so that a step pays next to nothing for it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

STEP_BOUNDS_S = (50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 20e-3, 50e-3)
"""Upper bounds of the histogram of answer times, seconds; one more bucket has no bound."""

SessionEnd = Literal["closed", "idle", "limit", "memory", "diverged"]
"""Why a session ended: its client closed it, it was idle for too long, it gave way to another one (number or memory),
or its tokens contradicted what was known."""


class ServerCounts:
    """Counters since the start. Only the event loop writes to them."""

    __slots__ = (
        "drafted_nodes",
        "empty_drafts",
        "ended_sessions",
        "failed_steps",
        "opened_sessions",
        "refused_openings",
        "sequences",
        "step_buckets",
        "step_seconds",
        "steps",
    )

    def __init__(self) -> None:
        self.steps = 0
        self.sequences = 0
        self.drafted_nodes = 0
        self.empty_drafts = 0
        self.failed_steps: dict[str, int] = {}
        self.opened_sessions = 0
        self.refused_openings: dict[str, int] = {}
        self.ended_sessions: dict[SessionEnd, int] = dict.fromkeys(get_args(SessionEnd), 0)
        self.step_seconds = 0.0
        self.step_buckets = [0] * (len(STEP_BOUNDS_S) + 1)

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

    def fail_step(self, code_name: str) -> None:
        """Count a step that was refused or failed, by the name of its status code."""
        self.failed_steps[code_name] = self.failed_steps.get(code_name, 0) + 1

    def refuse_opening(self, code_name: str) -> None:
        """Count a session that was not opened, by the name of the status code."""
        self.refused_openings[code_name] = self.refused_openings.get(code_name, 0) + 1

    def end_session(self, reason: SessionEnd) -> None:
        """Count the end of a session."""
        self.ended_sessions[reason] += 1

    def copy(self) -> ServerCounts:
        """Return the counters as they are now."""
        copied = ServerCounts()
        for name in self.__slots__:
            value = getattr(self, name)
            setattr(copied, name, value.copy() if isinstance(value, dict | list) else value)
        return copied


@dataclass(frozen=True, slots=True)
class GraphState:
    """A served graph at one moment."""

    name: str
    """Its name."""
    generation: int
    """Its generation, which grows with every reload."""
    open_sessions: int
    """Sessions that draft from it."""


@dataclass(frozen=True, slots=True)
class ServerState:
    """What the sidecar holds at one moment."""

    graphs: Sequence[GraphState] = ()
    """The graphs that are served."""
    session_bytes: int = 0
    """Memory of all sessions."""
    learned_tokens: int = 0
    """Tokens of all tenants in the learned store."""
    is_failing_to_learn: bool = False
    """Whether what was learned can't be brought to disk at present."""
