"""What a drafter counts."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from speculant_graph.types import DrafterStatistics

_NUM_ROUND_TRIPS_KEPT = 1_000


@dataclass
class Counts:
    """Running counts; the fields are those of :class:`~speculant_graph.types.DrafterStatistics`."""

    steps: int = 0
    failed_steps: int = 0
    drafted_nodes: int = 0
    reopened_sessions: int = 0
    skipped_steps: int = 0
    late_answers: int = 0
    failovers: int = 0
    round_trip_s: deque[float] = field(default_factory=lambda: deque(maxlen=_NUM_ROUND_TRIPS_KEPT))
    last_failure: str = ""

    def snapshot(self) -> DrafterStatistics:
        """Return the counts as they are now."""
        return DrafterStatistics(**vars(self) | {"round_trip_s": tuple(self.round_trip_s)})
