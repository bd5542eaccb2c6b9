"""Chunked prefill between decoding steps, and a prefix cache.

The size of a prefill chunk is limited so that running sequences do not stall. Agents send the whole conversation with
every call, so the prefix cache keeps the keys and values of ended sequences. The prefix cache holds copies of keys and
values, outside the batch's rows. Full-attention layers can resume at any position of a kept sequence. Sliding-window
layers hold only the window before the last position, so their windows are copied where later requests may resume.
Windows are copied where instructions and tools end (if the request states this position), where the prompt ends, and
where the output ends. Another window is copied where the prompt diverges from a kept sequence.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from speculant_verifier.cache import SlotCache
from speculant_verifier.cache.slots import KeysAndValues
from speculant_verifier.engine.sequence import MOST_PENDING, ActiveSequence, StepOutput, is_out_of_memory
from speculant_verifier.engine.totals import EngineTotals
from speculant_verifier.model import TargetModel

_LEAST = 32
"""Length of the shortest cached prefix that is reused, in tokens. Copying the keys and values of a shorter prefix takes
as long as reading its tokens."""


@dataclass(slots=True)
class _Kept:
    tenant: str
    token_ids: NDArray[np.int64]
    contents: KeysAndValues
    """Keys and values of all tokens in full-attention layers."""
    windows: dict[int, KeysAndValues] = field(default_factory=dict)
    """Keys and values of sliding-window layers, by the exclusive end position of the window."""

    @property
    def num_bytes(self) -> int:
        parts = [self.contents, *self.windows.values()]
        return sum(keys.nbytes + values.nbytes for contents in parts for keys, values in contents)


class PrefixCache:
    """LRU cache of keys and values by token prefix, with bounded memory. Tenants find only their own entries."""

    def __init__(self, cache: SlotCache, num_bytes: int) -> None:
        """Copy from and to a KV cache, and keep at most ``num_bytes`` of copied keys and values; 0 keeps nothing."""
        self._cache, self._bound = cache, num_bytes
        self._window = cache.layout.window
        self._kept: list[_Kept] = []  # most recently used last
        self.num_bytes = 0
        """Total size of the cache's entries, in bytes."""

    @property
    def takes_stops(self) -> bool:
        """Whether requests should say where later prompts will diverge; this is needed only with sliding windows."""
        return bool(self._window and self._bound)

    def begin(self, sequence: ActiveSequence) -> None:
        """Copy the longest cached prefix of a sequence's prompt into its empty row."""
        prompt = np.asarray(sequence.prompt[:-1], dtype=np.int64)  # the last token must be read for its logits
        best, length, longest = None, 0, 0
        for kept in self._kept:
            if kept.tenant == sequence.tenant:
                shared = _common(kept.token_ids, prompt)
                usable = max((end for end in kept.windows if end <= shared), default=0) if self._window else shared
                longest = max(longest, shared)
                if usable >= max(_LEAST, length):
                    best, length = kept, usable
        if self._window:  # so that the next prompt can resume there
            known = min(sequence.request.shared_length, len(prompt))
            sequence.window_stops = tuple(sorted({end for end in (known, longest) if end >= length + _LEAST}))
        if best is None:
            return
        self._kept.append(self._kept.pop(next(i for i, kept in enumerate(self._kept) if kept is best)))
        self._cache.reserve(length)
        self._cache.write(sequence.row, 0, best.contents, sliding=False, length=length)
        if self._window:
            start = max(0, length - self._window + 1)
            self._cache.write(sequence.row, start, best.windows[length], sliding=True, length=length - start)
            sequence.windows = {end: window for end, window in best.windows.items() if end <= length}
        self._cache.set_length(sequence.row, length)
        sequence.num_cached = sequence.num_from_prefix_cache = length

    def note(self, sequence: ActiveSequence) -> None:
        """Copy a sequence's sliding windows at its current end, where a later request may resume."""
        if self._window and self._bound:
            end = sequence.num_cached
            start = max(0, end - self._window + 1)
            sequence.windows[end] = self._cache.read(sequence.row, start, end, sliding=True)

    def keep(self, sequence: ActiveSequence) -> None:
        """Copy a sequence's keys and values into the cache; call this before the sequence's row is reused."""
        if not self._bound or sequence.num_cached < _LEAST or self._cache.is_empty:
            return
        token_ids = np.asarray(sequence.token_ids[: sequence.num_cached], dtype=np.int64)
        others = [kept for kept in self._kept if kept.tenant == sequence.tenant]
        try:
            self.note(sequence)
            for kept in others:
                shared = _common(kept.token_ids, token_ids)
                if shared == len(token_ids):  # the entry contains the whole sequence
                    self._forget(kept)
                    kept.windows |= sequence.windows
                    self._add(kept)
                    return
                if shared == len(kept.token_ids):
                    self._forget(kept)
                    sequence.windows = kept.windows | sequence.windows
            contents = self._cache.read(sequence.row, 0, len(token_ids), sliding=False)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            self.clear()
            return
        self._add(_Kept(sequence.tenant, token_ids, contents, sequence.windows))

    def clear(self) -> None:
        """Remove all entries."""
        self._kept, self.num_bytes = [], 0

    def _add(self, kept: _Kept) -> None:
        if kept.num_bytes > self._bound:
            return
        self._kept.append(kept)
        self.num_bytes += kept.num_bytes
        while self.num_bytes > self._bound:
            self._forget(self._kept[0])

    def _forget(self, kept: _Kept) -> None:
        self._kept = [each for each in self._kept if each is not kept]
        self.num_bytes -= kept.num_bytes


class Prefill:
    """Prefills sequences: reads all their pending tokens except the last token of each sequence."""

    def __init__(
        self, target: TargetModel, cache: SlotCache, prefixes: PrefixCache, chunk: int, totals: EngineTotals
    ) -> None:
        """Prefill in passes of at most ``chunk`` tokens, including padding."""
        self._target, self._cache, self._prefixes, self._chunk = target, cache, prefixes, chunk
        self._totals = totals

    def selected(self, sequences: Sequence[ActiveSequence]) -> list[ActiveSequence]:
        """Return the sequences to read in the next chunk, chosen in order of their arrival.

        Short prompts are read together if the padded pass fits into the chunk and into the slots of their rows.
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
        """Prefill one chunk of the :meth:`selected` sequences; no token is emitted."""
        started_s, stall_s = time.perf_counter(), self._target.stall_s
        takes = [self._take(each) for each in sequences]
        chunks = [
            each.token_ids[each.num_cached : each.num_cached + take]
            for each, take in zip(sequences, takes, strict=True)
        ]
        self._target.prefill(chunks, self._cache, [each.row for each in sequences])
        for sequence, take in zip(sequences, takes, strict=True):
            sequence.num_cached += take
            num_left = len(sequence.token_ids) - sequence.num_cached
            if sequence.num_cached in sequence.window_stops or num_left <= MOST_PENDING:
                self._prefixes.note(sequence)
        elapsed_s, stall_s = time.perf_counter() - started_s, self._target.stall_s - stall_s
        for times in (self._totals.times, *(each.times for each in sequences)):
            times.prefill_s += elapsed_s
            times.stall_s += stall_s
        return []

    def _take(self, sequence: ActiveSequence) -> int:
        take = min(len(sequence.token_ids) - sequence.num_cached - 1, self._chunk)
        if (stop := next((end for end in sequence.window_stops if end > sequence.num_cached), None)) is not None:
            take = min(take, stop - sequence.num_cached)
        if not self._has_capacity(sequence.num_cached, take):
            take = 1 << take.bit_length() - 1  # kernels do not pad a power of two
        return take

    def _has_capacity(self, deepest: int, width: int) -> bool:
        capacity = self._cache.most_slots
        return capacity is None or deepest + width <= capacity


def _common(one: NDArray[np.int64], other: NDArray[np.int64]) -> int:
    """Return the length of two sequences' common prefix."""
    length = min(len(one), len(other))
    different = np.flatnonzero(one[:length] != other[:length])
    return int(different[0]) if len(different) else length
