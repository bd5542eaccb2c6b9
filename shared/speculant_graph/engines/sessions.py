"""The sequences of an engine as sessions of a drafter: drafts for a batch, of which as many tokens are kept as pay.

Rows of a batch move, are used again, and equal prompts stand side by side; most engines do not name their requests. So
a sequence is recognised by its text. A row continues the sequence that stood in its place before, if the row's text
begins with that sequence's whole text and is longer by no more than one step can add; else the longest sequence of
which this holds; else it begins a new one. A sequence that no row continues has ended. If the engine had preempted it
and brings it back, it begins again with its present text.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from loguru import logger
from numpy.typing import NDArray

from speculant_graph.engines.price import LearnedCost, paying_drafts
from speculant_graph.errors import SpeculantError
from speculant_graph.types import EMPTY_DRAFT, Draft, Drafter, DrafterState, SequenceStep, SessionOptions, TokenId

Tokens = NDArray[np.int32]
_TAIL = 16
_NUM_TIMES_KEPT = 10_000

_PATIENCE, _REST = 32, 3
"""After so many batches of which nothing paid, so many steps are left out between two."""


@dataclass(frozen=True, slots=True, eq=False)
class EngineRow:
    """One sequence as the engine has it before its next pass."""

    token_ids: Sequence[TokenId] | NDArray[np.integer]
    """The whole text so far, prompt included."""
    capacity: int
    """Most tokens that may be drafted."""
    request_id: str | None = None
    """Its request, if the engine names it."""
    tenant: str | None = None
    """The tenant of the text; None is the drafter's own setting."""


class TrackedSequence:
    """A sequence that an engine decodes, and a copy of its text: the engine may change its own at any time."""

    def __init__(self, session_id: int, request_id: str | None, token_ids: Tokens) -> None:
        """Begin with a text.

        Args:
            session_id: its session with the drafter.
            request_id: its request's, if the engine names it.
            token_ids: the whole text.
        """
        self.session_id = session_id
        self.request_id = request_id
        self.is_new = True
        """Whether nothing was asked for it yet."""
        self._buffer = np.empty(max(2 * token_ids.size, 256), np.int32)
        self._length = 0
        self.extend(token_ids)

    @property
    def text(self) -> Tokens:
        """All tokens; later ones do not change it."""
        return self._buffer[: self._length]

    @property
    def key(self) -> str | bytes:
        """What a row that goes on with it is found by: its request, or its last tokens."""
        return self.text[-_TAIL:].tobytes() if self.request_id is None else self.request_id

    def is_begun_by(self, token_ids: Tokens, most_new: int) -> bool:
        """Return whether a row goes on with it, by at most so many tokens."""
        length = self._length
        return length <= token_ids.size <= length + most_new and bool((token_ids[:length] == self.text).all())

    def extend(self, token_ids: Tokens) -> None:
        """Take what is new of its whole text."""
        if token_ids.size > self._buffer.size:
            longer = np.empty(2 * token_ids.size, np.int32)
            longer[: self._length] = self.text
            self._buffer = longer  # views of the old text keep the old one
        self._buffer[self._length : token_ids.size] = token_ids[self._length :]
        self._length = token_ids.size


class SequenceTracker:
    """The sequences of the batch as it was at the last call."""

    def __init__(self, most_new: int) -> None:
        """Begin without sequences.

        Args:
            most_new: most tokens that a pass may add to one.
        """
        self._most_new = most_new
        self._sequences: list[TrackedSequence] = []
        self._ids = itertools.count(1)

    def match(self, rows: Sequence[EngineRow]) -> tuple[list[TrackedSequence], list[TrackedSequence]]:
        """Find the sequence of every row of the batch, and take what is new of its text.

        Returns:
            The sequence of every row, and those that have ended.
        """
        texts = [np.asarray(row.token_ids, np.int32) for row in rows]
        former: list[TrackedSequence | None] = [*self._sequences]
        found: list[TrackedSequence | None] = [None] * len(rows)
        # Most rows stay in their place.
        for index, (row, text, each) in enumerate(zip(rows, texts, former, strict=False)):
            if each is not None and each.request_id == row.request_id and each.is_begun_by(text, self._most_new):
                found[index], former[index] = each, None
        unclaimed: dict[str | bytes, list[TrackedSequence]] = {}
        for each in former:
            if each is not None:
                unclaimed.setdefault(each.key, []).append(each)
        self._sequences = []
        for row, text, each in zip(rows, texts, found, strict=True):
            sequence = each or (self._claim(row, text, unclaimed) if unclaimed else None)
            if sequence is None:
                sequence = TrackedSequence(next(self._ids), row.request_id, text)
            else:
                sequence.extend(text)
            self._sequences.append(sequence)
        return self._sequences, list(itertools.chain.from_iterable(unclaimed.values()))

    def _claim(
        self, row: EngineRow, text: Tokens, unclaimed: dict[str | bytes, list[TrackedSequence]]
    ) -> TrackedSequence | None:
        """Return the longest sequence that a row goes on with, of those that no row has claimed."""
        for key in self._keys(row, text):
            candidates = unclaimed.get(key, [])
            for index, each in enumerate(candidates):
                if each.is_begun_by(text, self._most_new):
                    return candidates.pop(index)
        return None

    def _keys(self, row: EngineRow, text: Tokens) -> Iterator[str | bytes]:
        if row.request_id is not None:
            yield row.request_id
            return
        for length in range(text.size, max(text.size - self._most_new, 1) - 1, -1):
            yield text[max(length - _TAIL, 0) : length].tobytes()


@dataclass(slots=True)
class EngineCounts:
    """What was drafted for an engine since it began."""

    sequences: int = 0
    """Sequences that began, those that came back included."""
    running: int = 0
    """Sequences of the latest batch."""
    offered_tokens: int = 0
    """Tokens that the engine was given to verify."""
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
        cost: LearnedCost | None = None,
    ) -> None:
        """Take a drafter, which is closed with the sessions.

        Args:
            drafter: where drafts come from.
            most_drafted: most tokens that the engine verifies for a sequence.
            vocabulary_size: of the model; a draft with other ids is none.
            makes_trees: whether the engine verifies trees; of a tree the others get the best path.
            cost: what its passes cost; None keeps whole drafts.
        """
        self.counts = EngineCounts()
        """What was drafted so far."""
        self._drafter, self._most, self._vocabulary_size = drafter, most_drafted, vocabulary_size
        self._makes_trees, self._cost = makes_trees, cost
        self._tracker = SequenceTracker(max(most_drafted, _REST) + 1)
        self._pass: tuple[int, int] | None = None  # sequences and drafted tokens of the pass that is under way
        self._pass_began_s = 0.0
        self._num_in_vain = self._num_rests = 0
        self._lock = threading.Lock()
        self._is_closed = False

    @property
    def drafter_state(self) -> DrafterState:
        """Whether the drafter answered the latest batch."""
        return self._drafter.state

    def draft(self, rows: Sequence[EngineRow], *, read_prompts: bool = False) -> list[Draft]:
        """Draft for a batch.

        Args:
            rows: all sequences that the next pass decodes; those that are missing have ended.
            read_prompts: whether the pass before this call read prompts, too, so that its time is no measure.

        Returns:
            A draft for each row, in order.
        """
        started_s = time.perf_counter()
        with self._lock:
            try:
                drafts = [EMPTY_DRAFT] * len(rows) if self._is_closed else self._draft(rows, started_s, read_prompts)
            except Exception as error:  # any code may be a drafter, and decoding goes on
                drafts, self._pass = [EMPTY_DRAFT] * len(rows), None
                self._warn(error)
            self._pass_began_s = time.perf_counter()
            self.counts.seconds.append(self._pass_began_s - started_s)
        return drafts

    def close(self) -> None:
        """End all sequences, so that what they accepted is learned, and close the drafter."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._finish(self._tracker.match(())[1])
            self.counts.running, self._pass = 0, None
            self._drafter.close()

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
