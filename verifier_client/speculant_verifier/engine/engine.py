"""The decoding loop: requests join free rows, one step drafts, verifies and emits for all of them, rows are refilled.

One step is: one message to the drafter for all sequences, one forward pass over all drafted nodes, the rule, the
commit, the events. The loop knows neither text nor gRPC; the drafter is whatever satisfies
:class:`speculant_graph.types.Drafter`.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from loguru import logger

from speculant_graph.config import GenerationConfig
from speculant_graph.errors import TokenizerMismatchError
from speculant_graph.types import EMPTY_DRAFT, Draft, Drafter, SequenceStep, TokenId
from speculant_verifier.cache import SlotCache
from speculant_verifier.model import TargetModel
from speculant_verifier.results import FinishReason, PhaseTimes
from speculant_verifier.rules import TargetDistribution, Verdict
from speculant_verifier.rules.follow import follow
from speculant_verifier.sampling import choose

_PREFILL_CHUNK = 512


@dataclass(eq=False, slots=True)
class ActiveSequence:
    """One request while it is decoded; mutable, owned by the engine."""

    index: int
    prompt: tuple[TokenId, ...]
    config: GenerationConfig
    row: int = 0
    session_id: int = field(default_factory=lambda: secrets.randbits(63) + 1)
    token_ids: list[TokenId] = field(default_factory=list)
    """Prompt and output."""
    num_steps: int = 0
    num_steps_without_drafter: int = 0
    drafted_by_depth: list[int] = field(default_factory=list)
    accepted_by_depth: list[int] = field(default_factory=list)
    started: float = 0.0
    prefill_s: float = 0.0
    draft_s: float = 0.0
    forward_s: float = 0.0
    other_s: float = 0.0
    first_token_s: float = 0.0
    total_s: float = 0.0

    @property
    def output(self) -> tuple[TokenId, ...]:
        """Emitted tokens."""
        return tuple(self.token_ids[len(self.prompt) :])

    @property
    def num_remaining(self) -> int:
        """Tokens that may still be emitted."""
        return self.config.max_tokens - (len(self.token_ids) - len(self.prompt))

    def times(self) -> PhaseTimes:
        """Freeze the clocks."""
        return PhaseTimes(self.prefill_s, self.draft_s, self.forward_s, self.other_s, self.first_token_s, self.total_s)


@dataclass(frozen=True, slots=True)
class Emission:
    """What a step emitted for one sequence."""

    sequence: ActiveSequence
    token_ids: tuple[TokenId, ...]
    num_accepted: int
    finish_reason: FinishReason | None


class _Chosen:
    """A target whose choices are made already."""

    def __init__(self, choices: Sequence[TokenId]) -> None:
        self._choices = choices

    def choice_after(self, node: int) -> TokenId:
        return self._choices[node]

    def after(self, node: int) -> TargetDistribution:
        raise NotImplementedError


class Engine:
    """Decodes any number of requests, at most ``num_rows`` at a time."""

    def __init__(self, target: TargetModel, drafter: Drafter, num_rows: int, node_budget: int) -> None:
        """Set up without touching the model.

        Args:
            target: the model.
            drafter: where drafts come from.
            num_rows: sequences decoded together.
            node_budget: most nodes drafted per sequence and step; 0 decodes plainly.
        """
        self._target, self._drafter, self._node_budget = target, drafter, node_budget
        self._num_rows = num_rows
        self._has_emitted = False
        self._reader_s = 0.0  # spent by whoever reads the emissions; not ours to count

    def run(self, requests: Sequence[tuple[Sequence[TokenId], GenerationConfig]]) -> Iterator[Emission]:
        """Decode all requests and yield every step's emissions; the same requests always yield the same tokens."""
        waiting = deque(ActiveSequence(index, tuple(prompt), config) for index, (prompt, config) in enumerate(requests))
        cache = self._target.new_cache(min(self._num_rows, len(waiting)))
        free = list(range(cache.num_rows))[::-1]
        running: list[ActiveSequence] = []
        try:
            while waiting or running:
                while waiting and free:
                    sequence = waiting.popleft()
                    sequence.row = free.pop()
                    running.append(sequence)
                    self._admit(sequence, cache)
                # In the order of rows a full batch is one block of the cache, which then need not be gathered.
                running.sort(key=lambda sequence: sequence.row)
                for emission in self._step(running, cache):
                    self._has_emitted = True
                    if emission.finish_reason is not None:
                        running.remove(emission.sequence)
                        free.append(emission.sequence.row)
                        self._drafter.finish(emission.sequence.session_id)
                    paused = time.perf_counter()
                    yield emission
                    self._reader_s += time.perf_counter() - paused
        finally:  # also when the caller stops listening
            for sequence in running:
                self._drafter.finish(sequence.session_id)

    def _now(self) -> float:
        return time.perf_counter() - self._reader_s

    def _admit(self, sequence: ActiveSequence, cache: SlotCache) -> None:
        """Read the prompt, all but its last token, into the sequence's row."""
        sequence.started = self._now()
        sequence.token_ids = list(sequence.prompt)
        cache.clear(sequence.row)
        rest = sequence.prompt[:-1]
        for start in range(0, len(rest), _PREFILL_CHUNK):
            chunk = rest[start : start + _PREFILL_CHUNK]
            self._target.prefill([chunk], cache, [sequence.row])
        if self._node_budget:
            self._open(sequence)
        sequence.prefill_s = self._now() - sequence.started

    def _open(self, sequence: ActiveSequence) -> None:
        try:
            self._drafter.open(sequence.session_id)
        except TokenizerMismatchError as error:
            if not self._has_emitted:
                raise  # better to refuse the call than to go without drafts for ever
            logger.warning("the drafter has another tokenizer now, going on without drafts: {}", error)

    def _step(self, running: Sequence[ActiveSequence], cache: SlotCache) -> list[Emission]:
        clock = [self._now()]
        drafts = self._draft(running)
        clock.append(self._now())
        rows = [sequence.row for sequence in running]
        logits = self._target.forward([sequence.token_ids[-1:] for sequence in running], cache, rows, drafts)
        clock.append(self._now())
        emissions = []
        for index, (sequence, draft) in enumerate(zip(running, drafts, strict=True)):
            known = len(sequence.token_ids)
            depths = _depths(draft)
            positions = [known, *(known + depth for depth in depths)]
            choices = choose(logits[index, : len(positions)], positions, sequence.config)
            verdict = follow(draft, _Chosen(choices), float)
            emissions.append(self._accept(sequence, draft, depths, verdict, cache))
        clock.append(self._now())
        for emission in emissions:
            sequence = emission.sequence
            sequence.draft_s += clock[1] - clock[0]
            sequence.forward_s += clock[2] - clock[1]
            sequence.other_s += clock[3] - clock[2]
            sequence.total_s = clock[3] - sequence.started
            if sequence.num_steps == 1:
                sequence.first_token_s = sequence.total_s
        return emissions

    def _draft(self, running: Sequence[ActiveSequence]) -> list[Draft]:
        """Ask for drafts that could all be emitted; anything unusable becomes no draft."""
        budgets = [
            # The last emitted token is the model's own, so a draft may fill all but one of what remains.
            max(0, min(self._node_budget, sequence.num_remaining - 1, self._room(sequence) - 1))
            for sequence in running
        ]
        if not any(budgets):
            return [EMPTY_DRAFT] * len(running)
        steps = [
            SequenceStep(sequence.session_id, sequence.token_ids, budget, sequence.config.seed)
            for sequence, budget in zip(running, budgets, strict=True)
        ]
        drafts = self._drafter.draft(steps)
        if self._drafter.state == "unavailable":
            for sequence in running:
                sequence.num_steps_without_drafter += 1
        return [
            draft if len(draft) <= budget and self._is_usable(draft) else EMPTY_DRAFT
            for draft, budget in zip(drafts, budgets, strict=True)
        ]

    def _is_usable(self, draft: Draft) -> bool:
        """Whether a draft is a tree of known tokens, as its type promises."""
        return len(draft.parents) == len(draft.token_ids) and all(
            0 <= token < self._target.vocabulary_size and 0 <= parent <= node
            for node, (token, parent) in enumerate(zip(draft.token_ids, draft.parents, strict=True))
        )

    def _room(self, sequence: ActiveSequence) -> int:
        return self._target.max_length - len(sequence.token_ids)

    def _accept(
        self, sequence: ActiveSequence, draft: Draft, depths: Sequence[int], verdict: Verdict, cache: SlotCache
    ) -> Emission:
        """Emit up to the first end token or limit, commit what the cache must keep, count."""
        token_ids = verdict.token_ids[: sequence.num_remaining]
        reason: FinishReason | None = None
        if not sequence.config.ignore_end_tokens:
            for place, token in enumerate(token_ids):
                if token in self._target.end_token_ids:
                    token_ids, reason = token_ids[: place + 1], "stop"
                    break
        num_accepted = min(len(verdict.path), len(token_ids))
        sequence.token_ids += token_ids
        if reason is None and (sequence.num_remaining == 0 or self._room(sequence) <= 0):
            reason = "length"
        cache.commit(sequence.row, [0, *(node + 1 for node in verdict.path)])
        sequence.num_steps += 1
        _count(sequence.drafted_by_depth, depths)
        _count(sequence.accepted_by_depth, range(1, num_accepted + 1))
        return Emission(sequence, token_ids, num_accepted, reason)


def _depths(draft: Draft) -> list[int]:
    depths: list[int] = []
    for parent in draft.parents:
        depths.append(depths[parent - 1] + 1 if parent else 1)
    return depths


def _count(totals: list[int], depths: Sequence[int]) -> None:
    for depth in depths:
        while len(totals) < depth:
            totals.append(0)
        totals[depth - 1] += 1
