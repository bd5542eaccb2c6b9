"""A drafter that runs a language model where this saves time, alone or together with n-grams.

In every step the n-grams draft first. The strategy specexec then grows the trees as SpecExec does (:mod:`.specexec`).
With the other strategies, a cost model (:mod:`.draft_budget`) decides before each pass how many nodes the model
expands, if any. The model's candidates are mixed with the n-grams' candidates (:class:`~.tree.Reliability`), and the
most probable nodes are drafted. Drafts that contain the model's candidates carry no draft distribution q, so they are
verified with *follow* even if the request's rule needs q. All sequences of a batch share the draft model's passes. The
draft model never changes the output.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from loguru import logger

from speculant_graph.config import DraftConfig
from speculant_graph.strategies import STRATEGIES
from speculant_graph.types import (
    EMPTY_DRAFT,
    Draft,
    Drafter,
    DrafterState,
    DrafterStatistics,
    DraftSourceName,
    PassReport,
    SequenceStep,
    SessionOptions,
)
from speculant_verifier.draft_model.draft_budget import MOST_NODES, DraftPrice
from speculant_verifier.draft_model.passes import CachedSequence, DraftPasses, candidates_of
from speculant_verifier.draft_model.session import Session
from speculant_verifier.draft_model.specexec import MIXED_WIDTH, Shape, frontier, grow
from speculant_verifier.draft_model.tree import DraftTree, Reliability
from speculant_verifier.model import TargetModel

_LONGEST_READ = 64
"""Maximum number of pending tokens that a draft pass reads; a sequence with more is first prefilled in chunks."""
_PAUSE_S = 60.0
"""Seconds without the draft model after one of its passes has failed, for example because the memory was full."""
_LEAST_PAUSE = 8
"""Number of steps without the draft model after which it gets a trial, even if it does not seem to pay off. A trial of
the draft model is useful because the text may have become easier to predict."""
HIT_WINDOW = 1_000
"""Number of latest judged tokens from which an adapter's acceptance rate is computed. Tokens are judged if they follow
an expanded node, or if the model reads them as pending tokens."""
_HIT_SHARE = 0.12
"""Weight of the latest outcome in a sequence's running hit rate, which is an exponential average."""
_NGRAMS: tuple[DraftSourceName] = ("ngrams",)


class ModelDrafter:
    """Drafts with a language model, together with another drafter or alone."""

    def __init__(
        self,
        passes: DraftPasses,
        price: DraftPrice,
        config: DraftConfig,
        ngrams: Drafter | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Assemble the drafter.

        Args:
            passes: the model.
            price: costs and gains of the draft model's passes.
            config: drafting settings, such as tree depth and branching.
            ngrams: the n-gram drafter, which drafts first and is closed together with this drafter. If None, the draft
                model drafts alone.
            clock: returns the time in seconds, to measure the time spent on the model.
        """
        self._passes, self._price, self._config, self._ngrams = passes, price, config, ngrams
        self._clock = clock
        self.capabilities = STRATEGIES[config.strategy]
        """Properties of this drafter's drafts, such as whether they are trees."""
        self._reliability = Reliability()
        self._sessions: dict[int, Session] = {}
        self._paused_until_s = -math.inf
        self._next: tuple[TargetModel, frozenset[str] | None] | None = None
        self._tenants: frozenset[str] | None = None
        self._hits: deque[bool] = deque(maxlen=HIT_WINDOW)
        self.num_passes = 0
        """Number of the draft model's passes since the drafter was created."""
        self.ended: Callable[[], None] = lambda: None
        """Callback that the drafter calls after a sequence has ended."""
        self.passes_s = 0.0
        """Total duration of the draft model's passes, in seconds; the model's time account already includes it."""
        self._reported_s = 0.0  # the part of passes_s that is already reported

    @property
    def state(self) -> DrafterState:
        """State of the n-gram drafter; ``ok`` if there is none."""
        return "ok" if self._ngrams is None else self._ngrams.state

    @property
    def statistics(self) -> DrafterStatistics:
        """Statistics of the n-gram drafter; empty if there is none."""
        return DrafterStatistics() if self._ngrams is None else self._ngrams.statistics

    @property
    def hits(self) -> tuple[int, int]:
        """Number of latest judged tokens, at most :data:`HIT_WINDOW`, and how many of them the model ranked first."""
        hits = self._hits.copy()
        return len(hits), sum(hits)

    def swap(self, model: TargetModel, tenants: frozenset[str] | None = None) -> None:
        """Draft with another model from the next step on; the new model must read all sequences again. Thread-safe.

        Args:
            model: the new model.
            tenants: tenants for whose sequences the new model drafts; "" stands for sequences without a tenant. None:
                all tenants.
        """
        self._next = model, tenants
        self._hits = deque(maxlen=HIT_WINDOW)

    def _take_model(self) -> None:
        following, self._next = self._next, None
        if following is None:
            return
        model, self._tenants = following
        self._restart(model)
        self._hits = deque(maxlen=HIT_WINDOW)  # a step during the swap has recorded hits of the previous model
        self._price.begin_account()
        self._reliability, self._paused_until_s = Reliability(), -math.inf

    def _restart(self, model: TargetModel) -> None:
        """Begin with empty caches; all sequences are read again."""
        self._passes = DraftPasses(model, self._passes.num_rows)
        for session in self._sessions.values():
            session.forget_model()

    def _may_ask(self, session: Session) -> bool:
        return self._tenants is None or session.tenant in self._tenants

    def _is_unpriced(self, session: Session) -> bool:
        return self.capabilities.fills_budget or not session.step.is_priced

    def open(self, session_id: int, options: SessionOptions | None = None) -> str | None:
        """Begin a session for a sequence; see :class:`~speculant_graph.types.Drafter`."""
        self._sessions.setdefault(session_id, Session(options))
        if self._ngrams is None:
            return None
        return self._ngrams.open(session_id) if options is None else self._ngrams.open(session_id, options)

    def observe(self, report: PassReport) -> float:
        """Record the duration of the target's pass; return the duration of the model's passes since the last report."""
        self._price.record_target(report.seconds)
        weighed_s, self._reported_s = self.passes_s - self._reported_s, self.passes_s
        return weighed_s

    def finish(self, session_id: int) -> None:
        """End a session."""
        if self._ngrams is not None:
            self._ngrams.finish(session_id)
        session = self._sessions.pop(session_id, None)
        if session is None:
            return
        self._price.allowance.add(session.charged_s)  # the outcome of the latest step is unknown
        if session.cached is not None:
            self._passes.drop(session.cached)
        self.ended()

    def close(self) -> None:
        """Close this drafter and the n-gram drafter."""
        for session_id in list(self._sessions):
            self.finish(session_id)
        if self._ngrams is not None:
            self._ngrams.close()

    def draft(self, steps: Sequence[SequenceStep]) -> list[Draft]:
        """Draft for a batch; see :class:`~speculant_graph.types.Drafter`."""
        self._take_model()
        batch = [self._sessions.setdefault(step.session_id, Session()) for step in steps]
        for session, step in zip(batch, steps, strict=True):
            self._learn(session, step)
        drafts = self._from_ngrams(batch, steps)
        for session, step, draft in zip(batch, steps, drafts, strict=True):
            session.begin(step, draft)
        is_covered = self._price.allowance.covers(0.0)
        allowed = [
            index
            for index, each in enumerate(batch)
            if each.step.node_budget > 0 and (is_covered or self._is_unpriced(each)) and self._may_ask(each)
        ]
        started_s = self._clock()
        if not allowed or started_s < self._paused_until_s:
            return drafts
        try:
            for index in allowed:
                batch[index].tree = DraftTree(drafts[index], batch[index].hit_rate)
            search = self._fill if self.capabilities.fills_budget else self._search
            if search([batch[index] for index in allowed]):
                for index in allowed:
                    drafts[index] = self._best_of(batch[index])
        except (RuntimeError, MemoryError, IndexError) as error:  # torch raises these, for example if out of memory
            self._paused_until_s = started_s + _PAUSE_S
            logger.warning(
                "the draft model fails, continuing without it for {:.0f} s: {!r}; fix it, or leave it out",
                _PAUSE_S,
                error,
            )
            self._restart(self._passes.model)
        elapsed_s = self._clock() - started_s
        self._price.allowance.add(-elapsed_s)
        asked = [session for session in batch if session.is_asked]
        for session in asked:
            session.charged_s = elapsed_s / len(asked)
        return drafts

    def _learn(self, session: Session, step: SequenceStep) -> None:
        """Learn from the tokens emitted since the sequence's latest step."""
        emitted = step.token_ids[session.num_tokens :]
        if session.is_asked and self._price.rate:
            num_saved = len(emitted) - 1 - session.tree.num_followed(emitted, session.baseline)
            self._price.allowance.add(num_saved / self._price.rate)
        self._record_hits(session, session.tree.learn(emitted, self._reliability))

    def _record_hits(self, session: Session, hits: Sequence[bool]) -> None:
        """Record, for each judged token, whether the model ranked it first."""
        self._hits.extend(hits)
        for is_right in hits:
            session.hit_rate += _HIT_SHARE * (is_right - session.hit_rate)

    def _from_ngrams(self, batch: Sequence[Session], steps: Sequence[SequenceStep]) -> list[Draft]:
        if self._ngrams is None:
            return [EMPTY_DRAFT] * len(batch)
        translated = [
            replace(step, feedback=session.translated(step.feedback))
            for session, step in zip(batch, steps, strict=True)
        ]
        return [replace(draft, sources=_NGRAMS * len(draft)) for draft in self._ngrams.draft(translated)]

    def _best_of(self, session: Session) -> Draft:
        tree = session.tree
        chosen = tree.best(session.step.node_budget)
        session.ngrams_indices = [tree.nodes[index].ngrams_index for index in chosen]
        return tree.draft(chosen, self._config.strategy, session.inner_id)

    def _max_depth(self, step: SequenceStep) -> int:
        return min(step.node_budget, step.options.max_depth or self._config.max_depth)

    def _shape(self, step: SequenceStep) -> Shape:
        return Shape(step.node_budget, self._max_depth(step), self._config.max_branches)

    def _fill(self, batch: Sequence[Session]) -> bool:
        """Grow the trees as SpecExec does, regardless of cost; return whether the model ran."""
        members = self._members(batch)
        shapes = {index: self._shape(batch[index].step) for index in members}
        for index, cached in members.items():
            started_s = self._clock()
            while len(cached.pending) > _LONGEST_READ:
                self._passes.read(cached)
            self.passes_s += self._clock() - started_s
            batch[index].num_unasked, batch[index].is_asked = 0, True
        for number in range(max((shape.max_depth for shape in shapes.values()), default=0)):
            asked = {
                index: nodes
                for index in members
                if number < shapes[index].max_depth and (nodes := frontier(batch[index].tree, shapes[index]))
            }
            members = {index: members[index] for index in asked}
            if not members:
                break
            self._expand(batch, members, asked)
        return any(each.is_asked for each in batch)

    def _search(self, batch: Sequence[Session]) -> bool:
        """Expand tree nodes with the model for as long as this pays off; return whether the model ran.

        If no cost model applies to a sequence, its tree grows to its whole node budget.
        """
        members = self._members(batch)
        num_passes, plain_s = 0, 0.0
        while members:
            best = [each.tree.best(each.step.node_budget) for each in batch]
            gains = [[each.tree.nodes[node].path for node in nodes] for each, nodes in zip(batch, best, strict=True)]
            opened = {
                index: batch[index].tree.open_nodes(self._reliability, best[index], self._max_depth(batch[index].step))
                for index in members
            }
            pending = 0 if num_passes else max(len(cached.pending) for cached in members.values())
            wanted = {index: [gain for _, gain in nodes] for index, nodes in opened.items()}
            num_drafted, width, rows = self._price.choose(gains, wanted, pending)
            target_s = self._price.target_s(len(batch), num_drafted)
            growing = {
                index
                for index in members
                if not batch[index].step.is_priced and len(best[index]) < batch[index].step.node_budget
            }
            if num_passes:
                self._price.allowance.add(plain_s - target_s)
                rows = [*growing.union(rows)]
            else:
                for each, nodes in zip(batch, best, strict=True):
                    each.baseline = frozenset(nodes[:num_drafted])
                rows = self._first(batch, members, rows)
                width = max(width, 1)  # for a trial
            plain_s = target_s
            members = {index: members[index] for index in sorted(rows) if opened[index]}
            if not members:
                break
            pending = 0 if num_passes else max(len(cached.pending) for cached in members.values())
            asked = {
                index: [node for node, _ in opened[index][: MOST_NODES if index in growing else width]]
                for index in members
            }
            elapsed_s = self._expand(batch, members, asked)
            self._price.observe(len(members), max(1, pending) + max(map(len, asked.values())) - 1, elapsed_s)
            num_passes += 1
        return num_passes > 0

    def _members(self, batch: Sequence[Session]) -> dict[int, CachedSequence]:
        """Add emitted tokens to the cached sequences; return the sequences the model may draft for, by index."""
        members = {}
        for index, each in enumerate(batch):
            if each.cached is None:
                each.cached = self._passes.add()
            # Positions follow from depth, even if several nodes share a position.
            capacity = self._passes.model.max_length - len(each.step.token_ids) - self._max_depth(each.step)
            if each.cached is not None and capacity > 0:
                members[index] = each.cached
        self._passes.follow(list(members.values()), [batch[index].step.token_ids for index in members])
        return members

    def _first(
        self, batch: Sequence[Session], members: Mapping[int, CachedSequence], paying: Sequence[int]
    ) -> list[int]:
        """Return the indices of the sequences that join a step's first pass of the model.

        The first pass covers the sequences where it pays off, and all sequences to which no cost model applies. If no
        sequence qualifies, the first pass covers the sequences that are due for a trial.
        """
        chosen = [index for index in members if index in paying or not batch[index].step.is_priced]
        for index in members:
            batch[index].num_unasked += 1
        longest = max(batch[index].num_unasked for index in members)
        if not chosen and longest > _LEAST_PAUSE:
            chosen = [index for index in members if 2 * batch[index].num_unasked > longest]
            if not self._price.allowance.covers(float(self._price.pass_s(len(chosen), 0, 1)[-1])):
                chosen = []
        behind = [index for index in chosen if len(members[index].pending) > _LONGEST_READ]
        if behind:
            started_s = self._clock()
            self._passes.read(members[behind[0]])
            self.passes_s += self._clock() - started_s
        chosen = [index for index in chosen if len(members[index].pending) <= _LONGEST_READ]
        for index in chosen:
            batch[index].num_unasked, batch[index].is_asked = 0, True
        return chosen

    def _expand(
        self, batch: Sequence[Session], members: Mapping[int, CachedSequence], chosen: Mapping[int, Sequence[int]]
    ) -> float:
        """Run one pass over tree nodes and add its candidates to the trees; return the pass's duration in seconds."""
        started_s = self._clock()
        fills = self.capabilities.fills_budget
        nodes = [batch[index].tree.write(chosen[index], len(cached.tokens)) for index, cached in members.items()]
        width = self._config.max_branches if fills else MIXED_WIDTH
        rows = self._passes.run(list(members.values()), nodes, width)
        for (index, cached), top in zip(members.items(), rows, strict=True):
            each = batch[index]
            self._record_hits(each, cached.hits)  # for the tokens that the model has just read
            cached.hits = []
            if fills:
                grow(each.tree, chosen[index], top, self._reliability, self._shape(each.step))
                continue
            for node, row in zip(chosen[index], candidates_of(top, MIXED_WIDTH), strict=True):
                each.tree.expand(node, row, self._reliability, self._config.max_branches)
            each.tree.update()
        elapsed_s = self._clock() - started_s
        self.passes_s += elapsed_s
        self.num_passes += 1
        return elapsed_s
