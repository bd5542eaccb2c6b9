"""Short memory: caches are cleared, parts of the engine are reduced in order, and restored when there is enough."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from loguru import logger

from speculant_graph.errors import GenerationError
from speculant_verifier.engine.totals import EngineTotals
from speculant_verifier.model import TargetModel

_PAUSE_S = 0.5
"""Between looks at the memory."""
_CALM_S = 20.0
"""Nothing is taken back sooner after the last change."""
_SLACK = 1.25
"""So many times what it takes must be free before something is taken back."""


class Cache(Protocol):
    """What is kept for later alone."""

    @property
    def num_bytes(self) -> int:
        """Memory of it."""

    def clear(self) -> None:
        """Forget all."""


class Reducible(Protocol):
    """A part of an engine that can do with less memory."""

    degradable: str
    """What of it is reduced, for messages and metrics."""

    def reduce(self) -> int | None:
        """Give up some; bytes that were freed, about, or None if there is no more to give up."""

    def restore(self) -> None:
        """Take back what was given up last."""


class MemoryPressure:
    """Clears caches, then reduces parts of an engine one after the other, and restores the last one first."""

    def __init__(
        self,
        target: TargetModel,
        caches: Sequence[Cache],
        parts: Sequence[Reducible],
        spare: Callable[[], int | None],
        totals: EngineTotals,
    ) -> None:
        """Begin with all of them whole.

        Args:
            target: its device's allocator gives back what it keeps.
            caches: cleared before anything is reduced; they fill again.
            parts: in the order in which they are reduced.
            spare: bytes that are free beyond what should be; negative where memory is short, None if unknown.
            totals: what was reduced is counted there.
        """
        self._target, self._caches, self._parts, self._spare = target, caches, parts, spare
        self._totals = totals
        totals.num_reductions.update((part.degradable, 0) for part in parts)
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
        for free in (self._target.free_memory, self._clear, self._reduce):
            if spare is None or spare >= 0:
                break
            free()
            spare = self._spare()
        if self._reduced and now_s >= self._calm_s:
            part, num_bytes = self._reduced[-1]
            if spare is None or spare > _SLACK * num_bytes:
                self._reduced.pop()
                self._calm_s = now_s + _CALM_S
                part.restore()
                self._totals.num_reductions_in_force -= 1
                logger.info("there is memory again: more {}", part.degradable)

    def shed(self) -> bool:
        """Clear the caches, or reduce the first part that has something left; False if there is nothing to give up."""
        self._target.free_memory()
        return self._clear() or self._reduce()

    def _clear(self) -> bool:
        if not any(cache.num_bytes for cache in self._caches):
            return False
        for cache in self._caches:
            cache.clear()
        self._target.free_memory()
        return True

    def _reduce(self) -> bool:
        for part in self._parts:
            if (num_bytes := part.reduce()) is not None:
                logger.warning(
                    "memory is short, of the machine, its container or verifier.memory_budget: fewer {} until "
                    "there is more; see docs/offloading.md",
                    part.degradable,
                )
                self._reduced.append((part, num_bytes))
                self._totals.num_reductions[part.degradable] += 1
                self._totals.num_reductions_in_force += 1
                self._calm_s = time.monotonic() + _CALM_S
                return True
        return False
