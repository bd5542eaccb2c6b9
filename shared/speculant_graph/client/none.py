"""A drafter that drafts nothing."""

from __future__ import annotations

from collections.abc import Sequence

from speculant_graph.types import EMPTY_DRAFT, Draft, DrafterState, DrafterStatistics, SequenceStep, SessionOptions


class NullDrafter:
    """Never drafts: plain decoding."""

    @property
    def state(self) -> DrafterState:
        """Always ``off``."""
        return "off"

    @property
    def statistics(self) -> DrafterStatistics:
        """All zero."""
        return DrafterStatistics()

    def open(self, session_id: int, options: SessionOptions | None = None) -> None:
        """Do nothing."""

    def draft(self, steps: Sequence[SequenceStep]) -> list[Draft]:
        """Return an empty draft for every sequence."""
        return [EMPTY_DRAFT] * len(steps)

    def finish(self, session_id: int) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""
