"""Reacts to lack of memory: clears caches, reduces parts of the engine in order, and restores them later."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from loguru import logger

from speculant_graph.errors import GenerationError
from speculant_verifier.engine.totals import EngineTotals
from speculant_verifier.model import TargetModel

_PAUSE_S = 0.5
"""Minimum number of seconds between two checks of free memory."""
_CALM_S = 20.0
"""Seconds without a reduction or restoration before the next part is restored."""
_SLACK = 1.25
"""Free memory that is required before a part is restored, as a multiple of the memory that its reduction freed."""


class Cache(Protocol):
    """A cache that can be cleared at any time."""

    @property
    def num_bytes(self) -> int:
        """Total size of the cache's entries, in bytes."""

    def clear(self) -> None:
        """Remove all entries."""


class Reducible(Protocol):
    """A part of an engine that can work with less memory."""

    degradable: str
    """Name of the reduced quantity, for messages and metrics."""

    def reduce(self) -> int | None:
        """Reduce memory use by one level; return roughly the number of freed bytes, or None at the lowest level."""

    def restore(self) -> None:
        """Undo the latest reduction."""


class MemoryPressure:
    """Clears caches, then reduces parts of an engine one by one, and restores them in reverse order."""

    def __init__(
        self,
        target: TargetModel,
        caches: Sequence[Cache],
        parts: Sequence[Reducible],
        spare: Callable[[], int | None],
        totals: EngineTotals,
    ) -> None:
        """Begin without any reduction.

        Args:
            target: the model, whose allocator can return unused memory to the device.
            caches: caches to clear before any part is reduced; cleared caches fill again.
            parts: the parts, in the order in which they are reduced.
            spare: returns the free bytes beyond the required reserve; negative if memory is short, None if unknown.
            totals: counts the reductions.
        """
        self._target, self._caches, self._parts, self._spare = target, caches, parts, spare
        self._totals = totals
        totals.num_reductions.update((part.degradable, 0) for part in parts)
        self._reduced: list[tuple[Reducible, int]] = []
        self._due_s = self._calm_s = 0.0

    def look(self) -> None:
        """If a check of free memory is due, reduce or restore a part as needed; call this between steps."""
        now_s = time.monotonic()
        if now_s < self._due_s:
            return
        self._due_s = now_s + _PAUSE_S
        try:
            self._adapt(now_s)
        except GenerationError as error:  # weights can't be read; requests that need them fail
            logger.warning("memory use can't be adjusted: {}", error)

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
                logger.info("memory is free again: more {}", part.degradable)

    def shed(self) -> bool:
        """Clear the caches or, if they are empty, reduce a part; return False if nothing is left to reduce."""
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
                    "memory is short (of the machine, its container or verifier.memory_budget): fewer {} until "
                    "there is more; see docs/offloading.md",
                    part.degradable,
                )
                self._reduced.append((part, num_bytes))
                self._totals.num_reductions[part.degradable] += 1
                self._totals.num_reductions_in_force += 1
                self._calm_s = time.monotonic() + _CALM_S
                return True
        return False
