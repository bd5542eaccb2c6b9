"""Clocks around the parts of a decoding run: the engine is measured as it is, from outside."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from speculant_graph.types import Draft, Drafter, DrafterState, DrafterStatistics, SequenceStep, TokenId
from speculant_verifier.bench.forcing import ForcedRows
from speculant_verifier.cache import SlotCache
from speculant_verifier.model import TargetModel

PHASES = ("draft", "forward", "verify", "commit", "other")
"""Of a step. ``verify``: from logits to accepted tokens, stop checks included."""


class PhaseClock:
    """One clock whose time always goes to exactly one phase."""

    def __init__(self) -> None:
        """Begin in the phase ``other``."""
        self.seconds: dict[str, float] = defaultdict(float)
        self.num_passes = 0
        """Passes over drafts, reading of prompts not counted."""
        self.num_nodes = 0
        """Tokens in them: last tokens and drafted nodes."""
        self.num_rows = 0
        """Rows in them."""
        self.phase = "other"
        """Where time goes now."""
        self._since = time.perf_counter()

    def enter(self, phase: str) -> str:
        """Go on in another phase; returns the one before."""
        now = time.perf_counter()
        self.seconds[self.phase] += now - self._since
        before, self.phase, self._since = self.phase, phase, now
        return before

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """Spend a block in a phase and go back to the one before."""
        before = self.enter(phase)
        try:
            yield
        finally:
            self.enter(before)


class MeasuredTarget(TargetModel):
    """A target model with a clock around its passes and commits, and records forced upon it."""

    def __init__(self, target: TargetModel, clock: PhaseClock, forced: ForcedRows) -> None:
        """Share everything with ``target``; its passes are counted in ``clock``, its logits changed by ``forced``."""
        self.__dict__.update(target.__dict__)
        self._clock, self._forced = clock, forced

    def new_cache(self, num_rows: int) -> SlotCache:
        """Return an empty cache whose commits are measured."""
        cache = super().new_cache(num_rows)
        commit, clock = cache.commit, self._clock

        def measured(row: int, path: Sequence[int]) -> None:
            with clock.during("prefill" if clock.phase == "prefill" else "commit"):
                commit(row, path)

        cache.commit = measured  # type: ignore[method-assign]
        return cache

    @torch.inference_mode()
    def forward(
        self,
        token_ids: Sequence[Sequence[TokenId]],
        cache: SlotCache,
        rows: Sequence[int],
        drafts: Sequence[Draft] | None = None,
        *,
        last_only: bool = False,
    ) -> Tensor:
        """Run one pass; see :meth:`TargetModel.forward`."""
        self._clock.enter("prefill" if last_only else "forward")
        logits = super().forward(token_ids, cache, rows, drafts, last_only=last_only)
        if logits.is_cuda:
            torch.cuda.synchronize(logits.device)
        if last_only:
            self._clock.enter("forcing")
            self._forced.read(token_ids, cache, rows)
            self._clock.enter("prefill")
            return logits
        self._clock.num_passes += 1
        self._clock.num_rows += len(rows)
        self._clock.num_nodes += sum(map(len, token_ids))
        self._clock.enter("forcing")
        self._forced.force(logits, token_ids, cache, rows, drafts)
        self._clock.enter("verify")
        return logits


class MeasuredDrafter:
    """A drafter with a clock around it; whoever made it closes it."""

    def __init__(self, drafter: Drafter, clock: PhaseClock) -> None:
        """Pass everything on to ``drafter``."""
        self._drafter, self._clock = drafter, clock

    @property
    def state(self) -> DrafterState:
        """The drafter's."""
        return self._drafter.state

    @property
    def statistics(self) -> DrafterStatistics:
        """The drafter's."""
        return self._drafter.statistics

    def open(self, session_id: int) -> None:
        """Begin a session."""
        with self._clock.during("other"):
            self._drafter.open(session_id)

    def draft(self, steps: Sequence[SequenceStep]) -> list[Draft]:
        """Draft, on the clock."""
        self._clock.enter("draft")
        drafts = self._drafter.draft(steps)
        self._clock.enter("other")
        return drafts

    def finish(self, session_id: int) -> None:
        """End a session."""
        self._clock.enter("other")
        self._drafter.finish(session_id)

    def close(self) -> None:
        """Do nothing."""
