"""Measures forward passes: minima of repeated, interleaved runs, within a budget of time."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Sequence

import torch
from transformers.utils import logging

from speculant_graph.types import Draft
from speculant_verifier.cache import SlotCache
from speculant_verifier.console import patient_progress
from speculant_verifier.model import TargetModel
from speculant_verifier.offload import Plan
from speculant_verifier.speculation.costs import CostPoint, CostTable

BATCHES = (1, 4, 8)
"""Rows that are measured unless others are asked for."""
TOKENS = (1, 2, 4, 8, 16, 32, 64)
"""Tokens of a row that are measured unless others are asked for."""
CONTEXT = 200
"""Tokens that every row has in the cache while it is measured."""
BUDGET_S = 6.0
"""Longest time of a measurement."""

STREAMED_TOKENS = (1, 2, 4, 16, 64, 257)
"""Tokens of a row that are measured where weights are read for every pass: each takes seconds, and wide ones pay."""

_MOST_REPEATS = 9
_FEWEST_REPEATS = 2
_SHARE_OF_SETUP = 0.25
"""Of the budget, for filling caches and for first passes; what is not run by then is not measured."""

Progress = Callable[[int, int], None]
"""Told how much is done and how much there is to do."""


def batches_up_to(largest: int) -> tuple[int, ...]:
    """Return the batches to measure for engines that decode so many sequences together."""
    return (*(batch for batch in BATCHES if batch < largest), largest)


def measure_costs(
    target: TargetModel,
    batches: Sequence[int] = BATCHES,
    tokens: Sequence[int] = TOKENS,
    context: int = CONTEXT,
    budget_s: float = BUDGET_S,
    progress: Progress | None = None,
) -> CostTable:
    """Measure what passes of this model cost here and now.

    Every pass is run once to warm up and then again and again, in turn with all others, so that a noisy moment hits
    all of them; the smallest time counts. Where the budget is short, the largest batches and longest rows are left
    out, and the rest is run fewer times. The tokens are random, which in a mixture of experts wakes as many experts
    as any text.

    Args:
        target: the model.
        batches: rows; the smallest is always measured.
        tokens: tokens of each row; 1 is always measured.
        context: tokens that every row has in the cache.
        budget_s: longest time, in seconds. Two passes over one token are run however long they take; and of a model
            whose weights are read for every pass, all that is measured once.
        progress: called with hundredths of the budget.
    """
    started = time.perf_counter()
    probe = _Probe(target, min(context, target.max_length - max(tokens) - 1))
    tell = progress or (lambda done, total: None)

    def spent() -> float:
        seconds = time.perf_counter() - started
        tell(min(99, int(100 * seconds / budget_s)), 100)
        return seconds

    if target.offload is not None:
        return _streamed(probe, target.offload.plan, {min(batches), max(batches)}, tell)
    best_s = _set_up(probe, sorted(set(batches)), sorted({1, *tokens}), budget_s, spent)
    order = list(best_s)
    for repeat in range(_MOST_REPEATS):
        for point in order if repeat % 2 else reversed(order):
            if repeat >= _FEWEST_REPEATS and spent() > budget_s:
                break
            best_s[point] = min(best_s[point], probe.pass_s(*point))
        if spent() > budget_s:
            break
    tell(100, 100)
    points = tuple(CostPoint(batch, length, 1e3 * seconds) for (batch, length), seconds in best_s.items())
    return CostTable(points, probe.context)


def _streamed(probe: _Probe, plan: Plan, batches: Collection[int], tell: Progress) -> CostTable:
    """Run every pass once: they take seconds, most of which no noise of the machine changes."""
    points: list[CostPoint] = []
    opened = None
    lengths = sorted({min(length, 1 + plan.most_nodes, probe.capacity) for length in STREAMED_TOKENS})
    probe.context = min(probe.context, max(0, plan.kv_tokens // max(batches) - lengths[-1]))
    wanted = [(batch, length) for batch in sorted(batches) for length in lengths]
    with patient_progress():
        for batch, length in logging.tqdm(wanted, desc="Measuring passes"):
            tell(len(points), len(wanted))
            if batch != opened:
                probe.open(batch)
                opened = batch
            points.append(CostPoint(batch, length, 1e3 * probe.pass_s(batch, length)))
    tell(1, 1)
    return CostTable(tuple(points), probe.context)


def _set_up(
    probe: _Probe, batches: Sequence[int], tokens: Sequence[int], budget_s: float, spent: Callable[[], float]
) -> dict[tuple[int, int], float]:
    """Fill caches and run first passes until a share of the budget is spent; one pass is always run.

    Returns:
        Seconds of a pass for each (batch, tokens) that is to be measured; these were the first ones, so too long.
    """
    first_s: dict[tuple[int, int], float] = {}
    for batch in batches:
        probe.open(batch)
        probe.pass_s(batch, 1)  # the first pass of all pays for what is made once
        for length in tokens:
            first_s[batch, length] = probe.pass_s(batch, length)
            if spent() > _SHARE_OF_SETUP * budget_s:
                return first_s
    return first_s


class _Probe:
    """Caches with a context in every row, and passes over them that leave them as they were."""

    def __init__(self, target: TargetModel, context: int) -> None:
        self.context = max(0, context)
        self.capacity = target.max_length - self.context
        """Tokens that fit into a row behind these."""
        self._target = target
        self._caches: dict[int, SlotCache] = {}
        self._generator = random.Random(0)

    def open(self, batch: int) -> None:
        """Fill a cache of so many rows."""
        if self._target.offload is not None:
            self._caches.clear()
        self._caches[batch] = cache = self._target.new_cache(batch)
        if self.context:
            self._target.prefill([self._random(self.context) for _ in range(batch)], cache, range(batch))

    def pass_s(self, batch: int, tokens: int) -> float:
        """Return the seconds of one pass over chains; nothing of it is committed."""
        nodes = [self._random(tokens) for _ in range(batch)]
        drafts = [Draft(tuple(ids[1:]), tuple(range(tokens - 1))) for ids in nodes]
        self._wait()
        started = time.perf_counter()
        self._target.forward([ids[:1] for ids in nodes], self._caches[batch], range(batch), drafts)
        self._wait()
        return time.perf_counter() - started

    def _random(self, count: int) -> list[int]:
        return [self._generator.randrange(self._target.vocabulary_size) for _ in range(count)]

    def _wait(self) -> None:
        if self._target.device.type == "cuda":
            torch.cuda.synchronize(self._target.device)
