"""Reading prompts: a bounded chunk between two steps, so that sequences that are running do not stall."""

from __future__ import annotations

import time
from collections.abc import Sequence

from speculant_verifier.cache import SlotCache
from speculant_verifier.engine.admission import MOST_PENDING
from speculant_verifier.engine.prefix_cache import PrefixCache
from speculant_verifier.engine.sequence import ActiveSequence, StepOutput
from speculant_verifier.engine.totals import EngineTotals
from speculant_verifier.model import TargetModel


class Prefill:
    """Reads pending tokens, all but the last of each sequence."""

    def __init__(
        self, target: TargetModel, cache: SlotCache, prefixes: PrefixCache, chunk: int, totals: EngineTotals
    ) -> None:
        """Take the model, its cache, what keeps prompts, and the most tokens of one pass, padding included."""
        self._target, self._cache, self._prefixes, self._chunk = target, cache, prefixes, chunk
        self._totals = totals

    def selected(self, sequences: Sequence[ActiveSequence]) -> list[ActiveSequence]:
        """Return those to read a chunk of now: the ones that have waited longest.

        Short prompts are read together, as long as the padded pass stays within the chunk and within their rows' slots.
        """
        selected: list[ActiveSequence] = []
        width = deepest = 0
        for sequence in sorted(sequences, key=lambda each: each.number):
            width, deepest = max(width, self._take(sequence)), max(deepest, sequence.num_cached)
            if selected and ((len(selected) + 1) * width > self._chunk or not self._has_capacity(deepest, width)):
                break
            selected.append(sequence)
        return sorted(selected, key=lambda each: each.row)

    def step(self, sequences: Sequence[ActiveSequence]) -> list[StepOutput]:
        """Read one chunk of :meth:`selected` sequences; nothing is emitted."""
        started_s, stall_s = time.perf_counter(), self._target.stall_s
        takes = [self._take(each) for each in sequences]
        chunks = [
            each.token_ids[each.num_cached : each.num_cached + take]
            for each, take in zip(sequences, takes, strict=True)
        ]
        self._target.prefill(chunks, self._cache, [each.row for each in sequences])
        for sequence, take in zip(sequences, takes, strict=True):
            sequence.num_cached += take
            if sequence.num_cached == sequence.window_at or sequence.num_pending <= MOST_PENDING:
                self._prefixes.note(sequence)
        elapsed_s, stall_s = time.perf_counter() - started_s, self._target.stall_s - stall_s
        self._totals.prefill_s += elapsed_s
        for sequence in sequences:
            sequence.prefill_s += elapsed_s
            sequence.stall_s += stall_s
        return []

    def _take(self, sequence: ActiveSequence) -> int:
        take = min(sequence.num_pending - 1, self._chunk)
        if sequence.window_at is not None and sequence.num_cached < sequence.window_at:
            take = min(take, sequence.window_at - sequence.num_cached)
        if not self._has_capacity(sequence.num_cached, take):
            take = 1 << take.bit_length() - 1  # which no kernel pads
        return take

    def _has_capacity(self, deepest: int, width: int) -> bool:
        capacity = self._cache.most_slots
        return capacity is None or deepest + width <= capacity
