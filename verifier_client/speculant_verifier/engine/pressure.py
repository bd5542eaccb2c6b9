"""Memory that ends: what is given up for it, in order, and taken back when there is enough again."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from loguru import logger

from speculant_graph.errors import GenerationError
from speculant_verifier.engine.totals import EngineTotals

_PAUSE_S = 0.5
"""Between looks at the memory."""
_CALM_S = 20.0
"""Nothing is taken back sooner after the last change."""
_SLACK = 1.25
"""So many times what it takes must be free before something is taken back."""


class Reducible(Protocol):
    """A part of an engine that can do with less memory."""

    reducible: str
    """What of it is reduced, for messages and metrics."""

    def reduce(self) -> int | None:
        """Give up some; bytes that were freed, about, or None if there is no more to give up."""

    def restore(self) -> None:
        """Take back what was given up last."""


class MemoryPressure:
    """Reduces parts of an engine one after the other, and restores the last one first."""

    def __init__(
        self,
        parts: Sequence[Reducible],
        spare: Callable[[], int | None],
        totals: EngineTotals,
        free_up: Callable[[], None] = lambda: None,
    ) -> None:
        """Begin with all of them whole.

        Args:
            parts: in the order in which they are reduced.
            spare: bytes that are free beyond what should be; negative where memory is short, None if unknown.
            totals: what was reduced is counted there.
            free_up: gives back what is kept for later, before anything is reduced.
        """
        self._free_up = free_up
        self._parts, self._spare, self._totals = parts, spare, totals
        totals.num_reductions.update((part.reducible, 0) for part in parts)
        self._reduced: list[tuple[Reducible, int]] = []
        self._due_s = self._calm_s = 0.0

    def look(self) -> None:
        """Reduce or restore a part, if it is time to; between steps."""
        now_s = time.monotonic()
        if now_s < self._due_s:
            return
        self._due_s = now_s + _PAUSE_S
        try:
            self._adapt(now_s)
        except GenerationError as error:  # weights that can't be read; the requests whose passes need them fail
            logger.warning("what is kept in memory can't be changed: {}", error)

    def _adapt(self, now_s: float) -> None:
        spare = self._spare()
        if spare is not None and spare < 0:
            self._free_up()
            spare = self._spare()
        if spare is not None and spare < 0:
            self.relieve()
        elif self._reduced and now_s >= self._calm_s:
            part, num_bytes = self._reduced[-1]
            if spare is None or spare > _SLACK * num_bytes:
                self._reduced.pop()
                self._calm_s = now_s + _CALM_S
                part.restore()
                self._note()
                if all(other is not part for other, _ in self._reduced):
                    logger.info("there is memory again: {} as before", part.reducible)

    def relieve(self) -> bool:
        """Reduce the first part that has something left; False if none has."""
        for part in self._parts:
            if (num_bytes := part.reduce()) is not None:
                if all(other is not part for other, _ in self._reduced):
                    logger.warning(
                        "memory is short, of the machine, its container or verifier.memory_budget: fewer {} until "
                        "there is more; see docs/offloading.md",
                        part.reducible,
                    )
                self._reduced.append((part, num_bytes))
                self._totals.num_reductions[part.reducible] += 1
                self._calm_s = time.monotonic() + _CALM_S
                self._note()
                return True
        return False

    def _note(self) -> None:
        self._totals.num_reductions_in_force = len(self._reduced)
