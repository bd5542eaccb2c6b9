"""A drafter that asks a language model where that pays: beside n-grams, or alone.

For every step n-grams draft first. The price then decides pass by pass whether the model is asked about nodes of these
trees, and about how many; its candidates are mixed with the n-grams' (:mod:`.reliability`), and the most probable
nodes are drafted. For rules that weigh p against q the model alone draws chains or trees (:mod:`.drawing`). All
sequences of a batch share the passes. The text can't depend on any of it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from loguru import logger

from speculant_graph.config import DraftConfig
from speculant_graph.types import (
    EMPTY_DRAFT,
    Draft,
    Drafter,
    DrafterState,
    DrafterStatistics,
    DraftSourceName,
    SequenceStep,
    SessionOptions,
    TokenId,
)
from speculant_verifier.draft_model.drawing import DrawOrder, draw_drafts, shape_of
from speculant_verifier.draft_model.passes import ROW_WIDTH, CachedSequence, DraftPasses, TopRows
from speculant_verifier.draft_model.price import Allowance, DraftPrice
from speculant_verifier.draft_model.reliability import Candidate, Reliability
from speculant_verifier.draft_model.session import DraftSession, WantedDraft
from speculant_verifier.draft_model.tree import DraftTree
from speculant_verifier.model import TargetModel

_MIXED_WIDTH = 16
"""Tokens of the model's rows that are mixed."""
_LONGEST_READ = 64
"""Of a sequence with more pending tokens, these are read before the model drafts for it."""
_MEMORY = 0.97
"""What an outcome of a drawn token weighs after the next one."""
_FIRST_ACCEPTANCE = 0.8
_LEAST_PAUSE = 8
"""Steps without the model, until it is tried where that does not seem to pay: the text may have become easier."""
HIT_WINDOW = 1_000
"""Judged tokens that the acceptance of an adapter is measured by: those at which the model was asked, and those that it
read with its first pass over a sequence."""
_NGRAMS: tuple[DraftSourceName] = ("ngrams",)
_FAILURES = (RuntimeError, MemoryError, IndexError)
"""Of torch, such as memory that has ended."""


class ModelDrafter:
    """Drafts by a language model, beside another drafter or alone."""

    def __init__(
        self,
        passes: DraftPasses,
        price: DraftPrice,
        config: DraftConfig,
        ngrams: Drafter | None = None,
        temperature: float | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Take the parts.

        Args:
            passes: the model.
            price: what its passes cost and bring.
            config: how to draft: depth and branches of trees.
            ngrams: drafts first. It is closed with this one.
            temperature: what drafts are drawn with; None: what the request's own tokens are.
            clock: seconds, by which all that is spent on the model is measured.
        """
        self._passes, self._price, self._config, self._ngrams = passes, price, config, ngrams
        self._temperature, self._clock = temperature, clock
        self._reliability = Reliability()
        self._acceptance = _FIRST_ACCEPTANCE  # of a drawn token whose parent was accepted
        self._sessions: dict[int, DraftSession] = {}
        self._has_failed = False
        self._next: tuple[TargetModel, frozenset[str] | None] | None = None
        self._tenants: frozenset[str] | None = None
        self._hits: deque[bool] = deque(maxlen=HIT_WINDOW)
        self.ended: Callable[[Sequence[TokenId]], None] = lambda text: None
        """Called for every sequence that has ended."""
        self.num_passes = 0
        """Passes of the model since it was made."""
        self.passes_s = 0.0
        """Seconds that they took."""

    @property
    def state(self) -> DrafterState:
        """That of the n-grams' drafter."""
        return "ok" if self._ngrams is None else self._ngrams.state

    def weighed_s(self) -> float:
        """Return the seconds spent on the model so far: what they bring was weighed before."""
        return self.passes_s

    def note_pass(self, num_rows: int, width: int, seconds: float) -> None:
        """Take how long a pass of the target took, over so many tokens of each row."""
        self._price.note_target(num_rows, width, seconds)

    @property
    def statistics(self) -> DrafterStatistics:
        """Those of the n-grams' drafter."""
        return DrafterStatistics() if self._ngrams is None else self._ngrams.statistics

    @property
    def hits(self) -> tuple[int, int]:
        """Latest judged tokens, at most :data:`HIT_WINDOW`, and how many of them the model's best candidate was."""
        hits = self._hits.copy()
        return len(hits), sum(hits)

    def swap(self, model: TargetModel, tenants: frozenset[str] | None = None) -> None:
        """Draft by another model from the next step on; it reads all sequences again. From any thread.

        Args:
            model: the other one.
            tenants: whose sequences alone it is asked about, the empty one being of those without; None: all.
        """
        self._next = model, tenants
        self._hits = deque(maxlen=HIT_WINDOW)

    def _take_model(self) -> None:
        following, self._next = self._next, None
        if following is None:
            return
        model, self._tenants = following
        self._passes = self._passes.of(model)
        self._hits = deque(maxlen=HIT_WINDOW)  # the step that ran meanwhile has noted some of the other model's
        self._price.allowance = Allowance()
        self._reliability, self._acceptance, self._has_failed = Reliability(), _FIRST_ACCEPTANCE, False
        for session in self._sessions.values():
            session.forget_model()

    def _may_ask(self, session: DraftSession) -> bool:
        return self._tenants is None or session.tenant in self._tenants

    def open(self, session_id: int, options: SessionOptions | None = None) -> str | None:
        """Begin a session for a sequence; see :class:`~speculant_graph.types.Drafter`."""
        self._sessions.setdefault(session_id, DraftSession(options))
        if self._ngrams is None:
            return None
        return self._ngrams.open(session_id) if options is None else self._ngrams.open(session_id, options)

    def finish(self, session_id: int) -> None:
        """End a session."""
        if self._ngrams is not None:
            self._ngrams.finish(session_id)
        session = self._sessions.pop(session_id, None)
        if session is None:
            return
        self._price.allowance.add(session.charged_s)  # what became of its latest step will not be known
        if session.cached is not None:
            self._passes.drop(session.cached)
        if self._may_ask(session) and not self._has_failed:
            try:
                self.ended(session.text)
            except _FAILURES as error:
                self._fail(error)

    def close(self) -> None:
        """End everything, the n-grams' drafter too."""
        for session_id in list(self._sessions):
            self.finish(session_id)
        if self._ngrams is not None:
            self._ngrams.close()

    def draft(self, steps: Sequence[SequenceStep]) -> list[Draft]:
        """Draft for a batch; see :class:`~speculant_graph.types.Drafter`."""
        self._take_model()
        batch = [
            WantedDraft(step, self._sessions.setdefault(step.session_id, DraftSession()), self._config)
            for step in steps
        ]
        for each in batch:
            self._learn(each)
        drafts = self._from_ngrams(batch)
        for each, draft in zip(batch, drafts, strict=True):
            each.session.begin(each.step, draft)
        is_covered = self._price.allowance.covers(0.0)
        allowed = [
            index
            for index, each in enumerate(batch)
            if each.budget > 0 and (is_covered or not each.step.is_priced) and self._may_ask(each.session)
        ]
        if self._has_failed or not allowed:
            return drafts
        started_s = self._clock()
        searched = [index for index in allowed if not batch[index].step.draws]
        drawn = [index for index in allowed if batch[index].step.draws]
        try:
            for index in searched:
                batch[index].session.tree = DraftTree(drafts[index], batch[index].session.hit_rate)
            if searched and self._search([batch[index] for index in searched]):
                for index in searched:
                    drafts[index] = self._best_of(batch[index])
            if drawn and self._ngrams is None:  # q of a mixture with n-grams would not be known
                for index, draft in zip(drawn, self._draw([batch[index] for index in drawn]), strict=True):
                    drafts[index] = draft
                    batch[index].session.tree = DraftTree(draft)
        except _FAILURES as error:
            self._fail(error)
        elapsed_s = self._clock() - started_s
        self._price.allowance.add(-elapsed_s)
        asked = [each.session for each in batch if each.session.is_asked]
        for session in asked:
            session.charged_s = elapsed_s / len(asked)
        return drafts

    def _fail(self, error: Exception) -> None:
        self._has_failed = True
        self._passes.forget()
        logger.warning("the draft model fails, going on without it: {!r}; fix it, or leave it out", error)

    def _learn(self, wanted: WantedDraft) -> None:
        """Learn from what followed the sequence's latest step."""
        session, tree = wanted.session, wanted.session.tree
        if tree is None:
            return
        emitted = wanted.step.token_ids[session.num_tokens :]
        if session.is_asked and self._price.rate:
            num_saved = len(emitted) - 1 - tree.num_followed(emitted, session.baseline)
            self._price.allowance.add(num_saved / self._price.rate)
        if not wanted.step.draws:
            self._note_hits(session, tree.learn(emitted, self._reliability))
            return
        outcomes = tree.outcomes(emitted)
        self._note_hits(session, outcomes)
        for outcome in outcomes:
            self._acceptance = _MEMORY * self._acceptance + (1.0 - _MEMORY) * outcome

    def _note_hits(self, session: DraftSession, hits: Sequence[bool]) -> None:
        self._hits.extend(hits)
        session.note_hits(hits)

    def _take_hits(self, session: DraftSession, cached: CachedSequence) -> None:
        """Take what the model was right about in what it has just read."""
        self._note_hits(session, cached.hits)
        cached.hits = []

    def _from_ngrams(self, batch: Sequence[WantedDraft]) -> list[Draft]:
        if self._ngrams is None:
            return [EMPTY_DRAFT] * len(batch)
        steps = []
        for each in batch:
            feedback = each.session.translated(each.step.feedback)
            steps.append(each.step if feedback is each.step.feedback else replace(each.step, feedback=feedback))
        return [replace(draft, sources=_NGRAMS * len(draft)) for draft in self._ngrams.draft(steps)]

    def _best_of(self, wanted: WantedDraft) -> Draft:
        session, tree = wanted.session, wanted.tree
        chosen = tree.best(wanted.budget)
        session.ngrams_indices = [tree.nodes[index].ngrams_index for index in chosen]
        return tree.draft(chosen, "model" if self._ngrams is None else "tree", session.inner_id)

    def _search(self, batch: Sequence[WantedDraft]) -> bool:
        """Ask the model about nodes of the trees as long as that pays; return whether it was asked."""
        members = self._members(batch)
        spent_s, num_passes, plain_s = 0.0, 0, 0.0
        while members:
            best = [each.tree.best(each.budget) for each in batch]
            gains = [[each.tree.nodes[node].path for node in nodes] for each, nodes in zip(batch, best, strict=True)]
            opened = {
                index: batch[index].tree.open_nodes(self._reliability, best[index], batch[index].max_depth)
                for index in members
            }
            pending = 0 if num_passes else max(len(cached.pending) for cached in members.values())
            wanted = {index: [gain for _, gain in nodes] for index, nodes in opened.items()}
            num_drafted, width, rows = self._price.choose(gains, wanted, pending, spent_s)
            target_s = self._price.target_s(len(batch), num_drafted)
            if num_passes:
                self._price.allowance.add(plain_s - target_s)
            else:
                for each, nodes in zip(batch, best, strict=True):
                    each.session.baseline = frozenset(nodes[:num_drafted])
                rows = self._first(batch, members, rows)
                width = max(width, 1)  # of a try
            plain_s = target_s
            members = {index: members[index] for index in sorted(rows) if opened[index]}
            if not members:
                break
            started_s = self._clock()
            pending = 0 if num_passes else max(len(cached.pending) for cached in members.values())
            expected_s = float(self._price.pass_s(len(members), pending, width)[-1])
            self._expand(batch, members, {index: [node for node, _ in opened[index][:width]] for index in members})
            elapsed_s = self._clock() - started_s
            self._price.note(expected_s, elapsed_s)
            self._count(1, elapsed_s)
            spent_s += elapsed_s
            num_passes += 1
        return num_passes > 0

    def _members(self, batch: Sequence[WantedDraft]) -> dict[int, CachedSequence]:
        """Return the sequences that the model can be asked about, by their index, brought up to what was emitted."""
        members = {}
        for index, each in enumerate(batch):
            if each.session.cached is None:
                each.session.cached = self._passes.add()
            capacity = self._passes.model.max_length - len(each.step.token_ids) - each.budget
            if each.session.cached is not None and capacity > 0:
                members[index] = each.session.cached
        self._passes.follow(list(members.values()), [batch[index].step.token_ids for index in members])
        return members

    def _first(
        self, batch: Sequence[WantedDraft], members: Mapping[int, CachedSequence], paying: Sequence[int]
    ) -> list[int]:
        """Return the sequences of a step's first pass: those that it pays for, or else those that are to be tried.

        Those that want drafts always are among them.
        """
        chosen = [index for index in members if index in paying or not batch[index].step.is_priced]
        for index in members:
            batch[index].session.num_unasked += 1
        longest = max(batch[index].session.num_unasked for index in members)
        if not chosen and longest > _LEAST_PAUSE:
            chosen = [index for index in members if 2 * batch[index].session.num_unasked > longest]
            if not self._price.allowance.covers(float(self._price.pass_s(len(chosen), 0, 1)[-1])):
                chosen = []
        behind = [index for index in chosen if len(members[index].pending) > _LONGEST_READ]
        if behind:
            started_s = self._clock()
            self._passes.read(members[behind[0]])
            self._count(0, self._clock() - started_s)
        chosen = [index for index in chosen if len(members[index].pending) <= _LONGEST_READ]
        for index in chosen:
            batch[index].session.num_unasked, batch[index].session.is_asked = 0, True
        return chosen

    def _expand(
        self, batch: Sequence[WantedDraft], members: Mapping[int, CachedSequence], chosen: Mapping[int, Sequence[int]]
    ) -> None:
        """Run one pass over nodes of the trees and mix its candidates in."""
        nodes = [batch[index].tree.write(chosen[index], len(cached.tokens)) for index, cached in members.items()]
        rows = self._passes.run(list(members.values()), nodes, _MIXED_WIDTH)
        for (index, cached), top in zip(members.items(), rows, strict=True):
            self._take_hits(batch[index].session, cached)
            for node, row in zip(chosen[index], _candidates(top), strict=True):
                batch[index].tree.expand(node, row, self._reliability, self._config.max_branches)
            batch[index].tree.update()

    def _draw(self, batch: Sequence[WantedDraft]) -> list[Draft]:
        """Draw drafts, with q; how deep is decided before, by the outcomes of earlier ones."""
        drafts = [EMPTY_DRAFT] * len(batch)
        members = self._members(batch)
        if not members:
            return drafts
        most = max(each.max_depth for each in batch)
        depth = self._price.depth(self._acceptance, len(batch), most)
        chosen = self._first(batch, members, list(members) if depth else [])
        if not chosen:
            return drafts
        orders = [self._order(batch[index], members[index], max(depth, 1)) for index in chosen]
        started_s = self._clock()
        for index, draft in zip(chosen, draw_drafts(self._passes, orders), strict=True):
            self._take_hits(batch[index].session, members[index])
            drafts[index] = draft
        self._count(depth, self._clock() - started_s)
        self._price.allowance.add(self._price.target_s(len(batch), 0) - self._price.target_s(len(batch), max(depth, 1)))
        return drafts

    def _order(self, wanted: WantedDraft, cached: CachedSequence, depth: int) -> DrawOrder:
        step = wanted.step
        shape = shape_of(step.siblings, wanted.budget, min(depth, wanted.max_depth), self._config.max_branches)
        temperature = step.temperature or self._temperature or step.target_temperature
        most = self._config.max_candidates or ROW_WIDTH
        return DrawOrder(
            cached, len(step.token_ids), step.seed, step.siblings, shape,
            temperature if step.target_temperature else 0.0, most,
        )  # fmt: skip

    def _count(self, num_passes: int, seconds: float) -> None:
        self.num_passes += num_passes
        self.passes_s += seconds


def _candidates(rows: TopRows) -> list[list[Candidate]]:
    probabilities = np.exp(rows.logprobs).tolist()
    return [list(zip(*each, strict=True)) for each in zip(rows.token_ids.tolist(), probabilities, strict=True)]
