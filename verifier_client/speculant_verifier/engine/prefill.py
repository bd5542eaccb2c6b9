"""Reading prompts: a bounded stretch between two steps, so that sequences that are running do not stall."""

from __future__ import annotations

import time
from collections.abc import Sequence

from speculant_verifier.cache import SlotCache
from speculant_verifier.engine.sequence import ActiveSequence, Emission, EngineTotals
from speculant_verifier.model import TargetModel


class Prefill:
    """Reads pending tokens, all but the last of each sequence."""

    def __init__(self, target: TargetModel, cache: SlotCache, chunk: int, totals: EngineTotals) -> None:
        """Take the model, its cache and the most tokens of one pass, padding included."""
        self._target, self._cache, self._chunk, self._totals = target, cache, chunk, totals

    def step(self, sequences: Sequence[ActiveSequence]) -> list[Emission]:
        """Read one stretch of the sequences that have waited longest; nothing is emitted.

        Short prompts are read together, as long as the padded pass stays within the chunk, and padding beside a row
        that is nearly read within the memory that rows may take.
        """
        started_s = time.perf_counter()
        chosen: list[tuple[ActiveSequence, int]] = []
        width = start = 0
        for sequence in sorted(sequences, key=lambda each: each.arrival):
            take = min(sequence.num_pending - 1, self._chunk)
            if not self._fits(sequence.num_cached, take):  # but without padding it does
                take = 1 << take.bit_length() - 1
            both = max(start, sequence.num_cached), max(width, take)
            if chosen and ((len(chosen) + 1) * both[1] > self._chunk or not self._fits(*both)):
                break
            chosen.append((sequence, take))
            start, width = both
        chosen.sort(key=lambda pair: pair[0].row)
        stretches = [each.token_ids[each.num_cached : each.num_cached + take] for each, take in chosen]
        self._target.prefill(stretches, self._cache, [each.row for each, _ in chosen])
        for sequence, take in chosen:
            sequence.num_cached += take
        elapsed_s = time.perf_counter() - started_s
        self._totals.prefill_s += elapsed_s
        for sequence in sequences:
            sequence.prefill_s += elapsed_s
        return []

    def _fits(self, start: int, width: int) -> bool:
        return start + self._cache.layout.width_of(width) <= self._cache.most_capacity
