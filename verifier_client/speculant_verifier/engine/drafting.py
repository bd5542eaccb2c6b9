"""Asks the drafter for a batch's drafts in one message, with a node budget per sequence, and checks the response."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from functools import lru_cache

from loguru import logger

from speculant_graph.config import DraftConfig, GenerationConfig
from speculant_graph.errors import GenerationRequestError
from speculant_graph.random_stream import STEP_STREAM, uniform
from speculant_graph.types import (
    EMPTY_DRAFT,
    Draft,
    Drafter,
    DraftOptions,
    PassReport,
    RuleName,
    SequenceStep,
    SiblingsName,
    TokenId,
    capabilities_of,
)
from speculant_verifier.engine.sequence import ActiveSequence
from speculant_verifier.engine.totals import EngineTotals
from speculant_verifier.model import TargetModel
from speculant_verifier.rules import WANTS_PROPOSALS
from speculant_verifier.speculation.controller import DraftLengthController
from speculant_verifier.structured.constraint import with_forced

_ROUNDING = 1e-6
_FEWEST_NODES = 4
"""Limit on drafted nodes at or below which even a severe shortage of memory reduces the limit no further."""
_FEWEST_SHOWN = 16
"""Minimum number of unseen tokens at the end of a sequence that justifies a message to the drafter."""
_READING = DraftOptions(omit_neural=True)
_SIBLINGS: dict[RuleName, SiblingsName] = {"tree-wor": "without-replacement", "tree-iid": "independent"}


class Drafting:
    """Gets a draft for every sequence of a step."""

    degradable = "drafted nodes"

    def __init__(
        self,
        target: TargetModel,
        drafter: Drafter,
        controller: DraftLengthController,
        draft: DraftConfig,
        totals: EngineTotals,
        num_rows: int = 1,
    ) -> None:
        """Use a drafter and its settings for batches of at most ``num_rows`` sequences."""
        self._target, self._drafter, self._most_nodes = target, drafter, draft.k
        self._drafted_nodes, self._num_rows = draft.k, num_rows
        capabilities = capabilities_of(drafter, draft.strategy)
        self._makes_trees, self._is_unpriced = capabilities.makes_trees, capabilities.fills_budget
        self._controller, self._totals = controller, totals
        self._has_warned = False

    def spare_bytes(self) -> int | None:
        """Return the number of bytes of memory that stay free during the next pass; None if unknown."""
        spare = self._target.spare_bytes()
        return None if spare is None else spare - self._logit_bytes

    @property
    def _logit_bytes(self) -> int:
        """Bytes of the logits of a full batch with the largest drafts, stored in two dtypes."""
        return 8 * self._num_rows * (1 + self._drafted_nodes) * self._target.vocabulary_size

    def reduce(self) -> int | None:
        """Lower the limit on drafted nodes to a quarter; return the freed bytes, or None at the lowest limit."""
        if self._drafted_nodes <= _FEWEST_NODES:
            return None
        before, self._drafted_nodes = self._logit_bytes, self._drafted_nodes // 4
        return before - self._logit_bytes

    def restore(self) -> None:
        """Raise the limit on drafted nodes to about its previous value."""
        self._drafted_nodes = min(self._most_nodes, 4 * self._drafted_nodes + 3)

    def wants(self, sequence: ActiveSequence) -> bool:
        """Return whether a sequence gets drafts at all."""
        can_draft = self._drafter.state != "off" and sequence.config.speculation != "off"
        return can_draft and self._drafted_nodes > 0

    def drafts(self, sequences: Sequence[ActiveSequence]) -> list[Draft]:
        """Return one draft per sequence, with only tokens that may be emitted; an unusable draft becomes empty."""
        started_s = time.perf_counter()
        deepest = [self._most_depth(sequence) for sequence in sequences]
        limits = [self._limit(each, depth) for each, depth in zip(sequences, deepest, strict=True)]
        for each, depth in zip(sequences, deepest, strict=True):
            if not each.has_session and depth and self._budget(each) and self.wants(each):
                self._record_without(each)  # as the drafter refused to open a session
        histories = [each.history if self._is_priced(each) else None for each in sequences]
        budgets = self._controller.budgets(histories, limits) if any(limits) else limits
        if not any(budgets) and not any(map(_is_formed, sequences)):
            return [EMPTY_DRAFT] * len(sequences)
        least = self._controller.least_probability(limits)
        asked = [index for index, sequence in enumerate(sequences) if sequence.has_session and budgets[index]]
        steps = [
            SequenceStep(
                each.session_id,
                _text(each),
                budgets[index],
                draft_seed(each.config, len(each.token_ids)),
                each.feedback,
                _options(
                    each.config.rule,
                    each.config.max_depth,
                    each.config.draft_temperature,
                    each.config.draft_n,
                    each.config.draft_filler_top_k,
                    each.config.draft_stop_if_unknown,
                ),
                least_probability=least if self._is_priced(each) else 0.0,
                is_priced=self._is_priced(each),
            )
            for index, each in ((index, sequences[index]) for index in asked)
        ]
        drafts = [EMPTY_DRAFT] * len(sequences)
        shallow: list[Sequence[int]] = [()] * len(sequences)
        self._show_prompts(sequences[index] for index in asked)
        answer = self._ask(steps) if steps else []
        for index, draft in zip(asked, answer or [EMPTY_DRAFT] * len(asked), strict=True):
            sequences[index].feedback = None
            if self._drafter.state == "ok":
                sequences[index].num_shown = len(sequences[index].token_ids)
            looks_at_q = sequences[index].config.rule in WANTS_PROPOSALS
            shallow[index] = self._usable_nodes(draft, deepest[index], looks_at_q=looks_at_q)
            drafts[index] = draft.part(shallow[index])
        if answer is None or self._drafter.state == "unavailable":
            for index in asked:
                self._record_without(sequences[index])
        for index, sequence in enumerate(sequences):
            if _is_formed(sequence):
                most = min(self._budget(sequence), deepest[index])
                shallow[index], drafts[index] = self._formed(sequence, shallow[index], drafts[index], most)
        can_trim = [sequence.config.rule not in WANTS_PROPOSALS for sequence in sequences]
        for index, nodes in enumerate(self._controller.keep(histories, drafts, can_trim)):
            sequences[index].draft_nodes = [shallow[index][node] for node in nodes if node < len(shallow[index])]
            drafts[index] = drafts[index].part(nodes)
        elapsed_s = time.perf_counter() - started_s
        if asked:
            self._totals.draft_times.observe(elapsed_s)
        for times in (self._totals.times, *(each.times for each in sequences)):
            times.draft_s += elapsed_s
        return drafts

    def show_rest(self, ended: Sequence[ActiveSequence]) -> None:
        """Show the drafter the unseen text of ended sequences, so that it can learn from this text.

        The drafter has not seen the tokens of steps without drafts.
        """
        late = [each for each in ended if each.has_session and _num_unseen(each) >= _FEWEST_SHOWN]
        self._show_prompts(late)
        if late and self._drafter.state == "ok":
            self._ask([SequenceStep(each.session_id, _text(each), 0) for each in late])

    def _show_prompts(self, sequences: Iterable[ActiveSequence]) -> None:
        """Show the drafter the prompt of every sequence that is new to it but already has many output tokens.

        The drafter treats all text before a session's first draft as the prompt, which it does not learn.
        """
        steps = [
            SequenceStep(
                each.session_id,
                [*each.request.draft_prefix, *each.prompt],
                1,
                options=_READING,
                least_probability=1.0,
            )
            for each in sequences
            if not each.num_shown and _num_unseen(each) >= _FEWEST_SHOWN
        ]
        if steps and self._drafter.state == "ok":
            self._ask(steps)

    def _record_without(self, sequence: ActiveSequence) -> None:
        sequence.num_steps_without_drafter += 1
        self._totals.num_steps_without_drafter += 1

    def _formed(
        self, sequence: ActiveSequence, nodes: Sequence[int], draft: Draft, most: int
    ) -> tuple[Sequence[int], Draft]:
        """Remove the nodes that the constraint forbids, and append the tokens that it forces.

        Args:
            sequence: a sequence with a constraint, and with a rule that accepts modified drafts.
            nodes: indices of the draft's nodes in the drafter's response.
            draft: the usable part of the response.
            most: maximum number of nodes in the draft after forced tokens are appended.

        Returns:
            Indices of the remaining nodes in the drafter's response, and the draft to verify. Appended nodes come last
            in the draft and have no index.
        """
        assert sequence.sampler is not None
        assert sequence.sampler.constraint is not None
        constraint = sequence.sampler.constraint
        try:
            usable = constraint.usable(sequence.token_ids, draft)
            fitted = draft.part(usable)
            fitted = with_forced(constraint, sequence.token_ids, fitted, max(len(fitted), most))
        except GenerationRequestError:  # the same error ends the request when its tokens are chosen
            return (), EMPTY_DRAFT
        return [nodes[node] for node in usable], fitted

    def report(self, pass_s: float) -> float:
        """Report a pass's duration to the drafter; return the drafting time that the drafter's own account covers."""
        try:
            return self._drafter.observe(PassReport(pass_s))
        except Exception as error:  # drafters may be third-party code
            self._warn(error)
        return 0.0

    def _ask(self, steps: Sequence[SequenceStep]) -> list[Draft] | None:
        """Ask the drafter; return the usable drafts of its response, or None if the drafter failed."""
        try:
            return [
                draft if self._is_usable(draft, step.node_budget) else EMPTY_DRAFT
                for step, draft in zip(steps, self._drafter.draft(steps), strict=True)
            ]
        except Exception as error:  # drafters may be third-party code
            self._warn(error)
        return None

    def _warn(self, error: Exception) -> None:
        if not self._has_warned:
            logger.warning("the drafter fails, continuing without its drafts: {!r}; fix it, or leave it out", error)
            self._has_warned = True

    def _limit(self, sequence: ActiveSequence, most_depth: int) -> int:
        """Return the maximum number of drafted nodes that a sequence can use.

        The depth limit also bounds the number of nodes of a chain, but not that of a tree.
        """
        most_depth = most_depth if sequence.has_session else 0
        makes_trees = self._makes_trees or sequence.config.rule in _SIBLINGS
        budget = self._budget(sequence)
        return budget if makes_trees and most_depth else min(budget, most_depth)

    def _is_priced(self, sequence: ActiveSequence) -> bool:
        return sequence.config.speculation == "auto" and not self._is_unpriced

    def _budget(self, sequence: ActiveSequence) -> int:
        wanted = sequence.config.node_budget
        return self._drafted_nodes if wanted is None else min(self._drafted_nodes, wanted)

    def _most_depth(self, sequence: ActiveSequence) -> int:
        # The last emitted token is the target's own, so a draft may fill all but one of the remaining positions.
        most = max(0, min(sequence.longest, self._target.max_length) - len(sequence.token_ids) - 1)
        return most if sequence.config.max_depth is None else min(most, sequence.config.max_depth)

    def _is_usable(self, draft: Draft, budget: int) -> bool:
        """Return whether a draft is a well-formed tree within its node budget."""
        size = len(draft.token_ids)
        if size > budget or len(draft.parents) != size:
            return False
        if len(draft.path_probabilities) not in (0, size) or len(draft.proposals) not in (0, size):
            return False
        if not all(0 <= parent <= node for node, parent in enumerate(draft.parents)):
            return False
        if not all(token >= 0 for token in draft.token_ids):
            return False
        # No path is more probable than its prefix; the comparison is written so that NaN fails.
        above = (1.0 + _ROUNDING, *draft.path_probabilities)
        return all(
            0.0 <= probability <= above[parent]
            for probability, parent in zip(draft.path_probabilities, draft.parents, strict=False)
        )

    def _usable_nodes(self, draft: Draft, most_depth: int, *, looks_at_q: bool) -> Sequence[int]:
        """Return the nodes within the depth limit whose tokens may be emitted.

        A tokenizer may have tokens for which the model has no logits. If the rule compares p with q, a node whose q
        contains a token without logits is dropped, whichever token was drawn. All descendants of a dropped node are
        dropped, too. Dropping a node only if a token without logits was drawn would bias the rule.
        """
        size = self._target.vocabulary_size
        is_known = [True] * len(draft.token_ids)
        if looks_at_q and draft.proposals:
            is_known = [
                len(each.token_ids) == len(each.probabilities) and int(each.token_ids.max(initial=0)) < size
                for each in draft.proposals
            ]
        for node, (token, parent) in enumerate(zip(draft.token_ids, draft.parents, strict=True)):
            is_known[node] &= token < size and (parent == 0 or is_known[parent - 1])
        if all(is_known):
            return nodes_within(draft, most_depth)
        return [node for node, depth in enumerate(depths_of(draft)) if is_known[node] and depth <= most_depth]


def _text(sequence: ActiveSequence) -> Sequence[TokenId]:
    prefix = sequence.request.draft_prefix
    return [*prefix, *sequence.token_ids] if prefix else sequence.token_ids


def _num_unseen(sequence: ActiveSequence) -> int:
    """Return the number of output tokens that the drafter has not seen."""
    return len(sequence.token_ids) - max(sequence.num_shown, len(sequence.prompt))


def _is_formed(sequence: ActiveSequence) -> bool:
    """Return whether drafts must be fitted to the sequence's constraint.

    Rules that compare p with q get unmodified drafts. Dropping nodes would bias these rules, and they reject forbidden
    tokens anyway.
    """
    config, sampler = sequence.config, sequence.sampler
    has_form = sampler is not None and sampler.constraint is not None
    return has_form and config.speculation != "off" and config.rule not in WANTS_PROPOSALS


def depths_of(draft: Draft) -> list[int]:
    """Return the depth of every node; the root's children have depth 1."""
    depths: list[int] = []
    for parent in draft.parents:
        depths.append(depths[parent - 1] + 1 if parent else 1)
    return depths


def nodes_within(draft: Draft, most_depth: int) -> Sequence[int]:
    """Return a draft's nodes up to a depth. The choice ignores the tokens, so every verification rule stays exact."""
    size = len(draft.token_ids)
    if size <= most_depth:
        return range(size)
    return [node for node, depth in enumerate(depths_of(draft)) if depth <= most_depth]


def draft_seed(config: GenerationConfig, num_tokens: int) -> int:
    """Return the seed with which to draft for a sequence of ``num_tokens`` tokens.

    Drafters derive random numbers from the seed and the position. The rule *block* judges a draft as a whole, so the
    accepted length also depends on the random numbers of rejected tokens. With an unchanged seed, the next step would
    reuse the random numbers of rejected tokens. With the rule *block*, every step therefore gets a different seed.
    Rules other than *block* never look past the first rejected token, and trees drawn for them use no random number
    twice.
    """
    if config.rule != "block":
        return config.seed
    return int(uniform(config.seed, num_tokens, STEP_STREAM) * 2**53)


@lru_cache(maxsize=256)
def _options(
    rule: RuleName,
    max_depth: int | None,
    temperature: float | None,
    n: int | None,
    filler_top_k: int | None,
    stop_if_unknown: bool | None,
) -> DraftOptions:
    """Return a request's drafting options. Equal options share one object, so that steps can be grouped by it."""
    return DraftOptions(
        siblings=_SIBLINGS.get(rule, "none"),
        coupling=None if rule in WANTS_PROPOSALS else "gumbel",
        max_depth=max_depth,
        temperature=temperature,
        n=n,
        filler_top_k=filler_top_k,
        stop_if_unknown=stop_if_unknown,
    )
