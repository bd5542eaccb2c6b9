"""Adapts a drafter of sequences so that it drafts for the rows of an engine's batch."""

from __future__ import annotations

from collections.abc import Sequence

from speculant_graph._core import Batch, RowDrafts
from speculant_graph.budget import StepPrices, chosen_nodes
from speculant_graph.types import (
    DEFAULT_OPTIONS,
    EMPTY_DRAFT,
    Draft,
    Drafter,
    DrafterState,
    DrafterStatistics,
    DraftOptions,
    SequenceStep,
    SessionOptions,
)


class DrafterRows:
    """A :class:`~speculant_graph.types.RowDrafter` that calls a drafter of sequences, such as a sidecar's client."""

    def __init__(self, drafter: Drafter, *, makes_trees: bool = False) -> None:
        """Wrap a drafter; :meth:`close` closes it, too.

        Args:
            drafter: source of drafts.
            makes_trees: whether the engine verifies trees; otherwise it gets only the best path of each tree.
        """
        self._drafter, self._makes_trees = drafter, makes_trees

    @property
    def state(self) -> DrafterState:
        """Whether the drafter answered the last step."""
        return self._drafter.state

    @property
    def statistics(self) -> DrafterStatistics:
        """Statistics of the drafter since it was created."""
        return self._drafter.statistics

    def open(self, session_id: int, options: SessionOptions | None = None) -> str | None:
        """Open a session with options. Without options, do nothing; the first drafting step then opens the session."""
        return None if options is None else self._drafter.open(session_id, options)

    def draft_rows(
        self,
        batch: Batch,
        budgets: list[int],
        prices: StepPrices | None = None,
        options: DraftOptions = DEFAULT_OPTIONS,
    ) -> RowDrafts:
        """Draft for all rows of a batch, and keep the nodes that are worth their verification cost."""
        least = 0.0 if prices is None else prices.least_probability
        steps = [
            SequenceStep(session_id, text, max(0, budget), options=options, least_probability=least)
            for session_id, text, budget in zip(batch.session_ids, batch.texts, budgets, strict=True)
        ]
        drafts = [
            self._usable(draft, step.node_budget) for draft, step in zip(self._drafter.draft(steps), steps, strict=True)
        ]
        num_drafted = sum(map(len, drafts))
        if prices is not None:
            nodes = chosen_nodes(drafts, prices.seconds, prices.rate)
            drafts = [draft.part(kept) for draft, kept in zip(drafts, nodes, strict=True)]
        return as_rows(drafts, num_drafted)

    def finish(self, session_id: int) -> None:
        """End a session."""
        self._drafter.finish(session_id)

    def close(self) -> None:
        """Close the drafter."""
        self._drafter.close()

    def _usable(self, draft: Draft, budget: int) -> Draft:
        draft = draft if self._makes_trees else draft.best_path()
        return draft if len(draft) <= budget else EMPTY_DRAFT


def as_rows(drafts: Sequence[Draft], num_drafted: int | None = None) -> RowDrafts:
    """Return drafts as arrays over the rows of a batch, the format that engine adapters use.

    Args:
        drafts: one draft per row.
        num_drafted: number of drafted nodes before some of them were dropped; None if all nodes were kept.
    """
    all_have = all(len(draft) == len(draft.path_probabilities) for draft in drafts)
    return RowDrafts(
        [len(draft) for draft in drafts],
        [token for draft in drafts for token in draft.token_ids],
        [parent for draft in drafts for parent in draft.parents],
        [each for draft in drafts for each in draft.path_probabilities] if all_have else [],
        num_drafted,
    )
