"""The sequences of an engine as sessions of a drafter: drafts for a batch, of which as many tokens are kept as pay."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from loguru import logger

from speculant_graph.engines.matching import EngineRow, SequenceTracker, TrackedSequence
from speculant_graph.engines.price import PassCost, paying_drafts
from speculant_graph.errors import SpeculantError
from speculant_graph.types import EMPTY_DRAFT, Draft, Drafter, SequenceStep, SessionOptions

_NUM_TIMES_KEPT = 10_000
_PATIENCE, _REST = 32, 3
"""After so many batches of which nothing paid, so many steps are left out between two."""


@dataclass(slots=True)
class EngineCounts:
    """What was drafted for an engine since it began."""

    steps: int = 0
    """Batches asked for."""
    sequences: int = 0
    """Sequences that began, those that came back included."""
    running: int = 0
    """Sequences of the latest batch."""
    drafted_tokens: int = 0
    """Tokens that the drafter proposed."""
    offered_tokens: int = 0
    """Those of them that the engine was given to verify."""
    failed_steps: int = 0
    """Batches that got no drafts, and sequences that could not be ended, because of an error; a sidecar that is away is
    counted by its client instead."""
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=_NUM_TIMES_KEPT), repr=False)
    """How long the latest batches took."""


class EngineSessions:
    """Drafts for the rows of an engine's batch, step by step. Never raises on the decoding path."""

    def __init__(
        self,
        drafter: Drafter,
        *,
        most_drafted: int,
        vocabulary_size: int,
        makes_trees: bool = False,
        cost: PassCost | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Take a drafter, which is closed with the sessions.

        Args:
            drafter: where drafts come from.
            most_drafted: most tokens that the engine verifies for a sequence.
            vocabulary_size: of the model; a draft with other ids is none.
            makes_trees: whether the engine verifies trees; of a tree the others get the best path.
            cost: what its passes cost; None keeps whole drafts.
            clock: seconds.
        """
        self.counts = EngineCounts()
        """What was drafted so far."""
        self._drafter, self._most, self._vocabulary_size = drafter, most_drafted, vocabulary_size
        self._makes_trees, self._cost, self._clock = makes_trees, cost, clock
        self._tracker = SequenceTracker(max(most_drafted, _REST) + 1)
        self._pass: tuple[int, int] | None = None  # sequences and drafted tokens of the pass that is under way
        self._pass_began_s = 0.0
        self._num_in_vain = self._num_rests = 0
        self._lock = threading.Lock()
        self._is_closed = False

    @property
    def drafter(self) -> Drafter:
        """Where drafts come from."""
        return self._drafter

    def draft(self, rows: Sequence[EngineRow], *, read_prompts: bool = False) -> list[Draft]:
        """Draft for a batch.

        Args:
            rows: all sequences that the next pass decodes; those that are missing have ended.
            read_prompts: whether the pass before this call read prompts, too, so that its time is no measure.

        Returns:
            A draft for each row, in order.
        """
        started_s = self._clock()
        with self._lock:
            try:
                drafts = [EMPTY_DRAFT] * len(rows) if self._is_closed else self._draft(rows, started_s, read_prompts)
            except Exception as error:  # any code may be a drafter, and decoding goes on
                drafts, self._pass = [EMPTY_DRAFT] * len(rows), None
                self._warn(error)
            ended_s = self._clock()
            self._pass_began_s = ended_s
            self.counts.steps += 1
            self.counts.seconds.append(ended_s - started_s)
        return drafts

    def close(self) -> None:
        """End all sequences, so that what they accepted is learned, and close the drafter."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._end_all()
            self._drafter.close()

    def end_idle(self, idle_s: float) -> None:
        """End all sequences if nothing was asked for so long: an idle engine does not report what ended.

        Args:
            idle_s: seconds. A sequence that goes on after all begins anew.
        """
        with self._lock:
            if not self._is_closed and self._clock() - self._pass_began_s > idle_s:
                self._end_all()

    def _draft(self, rows: Sequence[EngineRow], started_s: float, read_prompts: bool) -> list[Draft]:
        if self._cost is not None and self._num_in_vain >= _PATIENCE and self._num_rests < _REST and rows:
            self._num_rests += 1  # what is written meanwhile is noticed at the next batch that is drafted for
            self._pass = len(rows), 0
            return [EMPTY_DRAFT] * len(rows)
        self._num_rests = 0
        sequences, ended = self._tracker.match(rows)
        num_new = sum(sequence.is_new for sequence in sequences)
        self.counts.sequences += num_new
        self.counts.running = len(rows)
        if self._cost is not None and self._pass is not None and not (read_prompts or num_new):
            self._cost.observe(*self._pass, started_s - self._pass_began_s)
        self._finish(ended)
        steps = []
        for row, sequence in zip(rows, sequences, strict=True):
            if row.tenant is not None and sequence.is_new:
                self._drafter.open(sequence.session_id, SessionOptions(tenant=row.tenant))
            sequence.is_new = False
            steps.append(
                SequenceStep(sequence.session_id, cast(Any, sequence.text), max(0, min(self._most, row.capacity)))
            )
        drafts = [self._usable(draft, step) for draft, step in zip(self._drafter.draft(steps), steps, strict=True)]
        self.counts.drafted_tokens += sum(map(len, drafts))
        if self._cost is not None:
            drafts = paying_drafts(drafts, self._cost)
        num_offered = sum(map(len, drafts))
        self._num_in_vain = 0 if num_offered or not rows else self._num_in_vain + 1
        self.counts.offered_tokens += num_offered
        self._pass = (len(rows), num_offered) if rows else None
        return drafts

    def _usable(self, draft: Draft, step: SequenceStep) -> Draft:
        if not self._makes_trees:
            draft = draft.best_path()
        is_usable = len(draft) <= step.node_budget and max(draft.token_ids, default=0) < self._vocabulary_size
        return draft if is_usable else EMPTY_DRAFT

    def _end_all(self) -> None:
        self._finish(self._tracker.match(())[1])
        self.counts.running, self._pass = 0, None

    def _finish(self, ended: Sequence[TrackedSequence]) -> None:
        for sequence in ended:
            try:
                self._drafter.finish(sequence.session_id)
            except Exception as error:  # the others end all the same
                self._warn(error)

    def _warn(self, error: Exception) -> None:
        if not self.counts.failed_steps:
            is_ours = isinstance(error, SpeculantError)
            logger.warning("no drafts, decoding goes on without them: {}", error if is_ours else repr(error))
        self.counts.failed_steps += 1
