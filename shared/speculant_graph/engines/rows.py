"""The interface of a drafter for the rows of an engine's batch, and an adapter for drafters of sequences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from speculant_graph._core import Batch, RowDrafts
from speculant_graph.budget import StepPrices, chosen_nodes
from speculant_graph.client.drafter_client import DrafterClient, begun
from speculant_graph.client.fleet import SidecarFleet
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


class RowDrafter(Protocol):
    """A drafter for all rows of an engine's batch, with columnar inputs and outputs. It may raise any exception."""

    @property
    def state(self) -> DrafterState:
        """Whether the drafter answered the last step."""

    @property
    def statistics(self) -> DrafterStatistics:
        """Counts since the drafter was made."""

    def open(self, session_id: int, options: SessionOptions | None = None) -> str | None:
        """Begin a session for a sequence; see :class:`Drafter`."""

    def draft_rows(
        self,
        batch: Batch,
        budgets: list[int],
        prices: StepPrices | None = None,
        options: DraftOptions = DEFAULT_OPTIONS,
    ) -> RowDrafts:
        """Draft for a batch, and keep only nodes that pay off.

        Args:
            batch: the rows, whose sessions are open.
            budgets: per row, the maximum number of nodes.
            prices: the gain that a node must exceed; None keeps whole drafts.
            options: drafting options.
        """

    def read_rows(self, batch: Batch, budgets: list[int], options: DraftOptions) -> None:
        """Read a batch's texts as :meth:`draft_rows` does, but return no drafts and do not wait for a sidecar."""

    def finish(self, session_id: int) -> None:
        """End a session and free its memory. Unknown ids are ignored."""

    def close(self) -> None:
        """Free sockets and threads. The drafter can't be used afterwards."""


class DrafterRows:
    """A :class:`RowDrafter` that calls a drafter of sequences, such as a sidecar's client."""

    def __init__(self, drafter: Drafter, *, makes_trees: bool = False) -> None:
        """Wrap a drafter; :meth:`close` closes it, too.

        Args:
            drafter: source of drafts.
            makes_trees: whether the engine verifies trees; otherwise it gets only the best path of each tree.
        """
        self._drafter, self._makes_trees = drafter, makes_trees
        self._readings: list[Callable[[], object]] = []  # wait for the answers to texts
        self._ended: list[int] = []  # sessions that end after their texts have been read

    @property
    def state(self) -> DrafterState:
        """Whether the drafter answered the last step."""
        return self._drafter.state

    @property
    def statistics(self) -> DrafterStatistics:
        """Statistics of the drafter since it was created."""
        return self._drafter.statistics

    def open(self, session_id: int, options: SessionOptions | None = None) -> str | None:
        """Open a session with options. Without options, do nothing: the session's first step opens it."""
        return None if options is None else self._drafter.open(session_id, options)

    def draft_rows(
        self,
        batch: Batch,
        budgets: list[int],
        prices: StepPrices | None = None,
        options: DraftOptions = DEFAULT_OPTIONS,
    ) -> RowDrafts:
        """Draft for a batch, and keep the nodes that are worth their cost."""
        steps = _steps(batch, budgets, options, 0.0 if prices is None else prices.least_probability)
        drafts = [
            self._usable(draft, step.node_budget) for draft, step in zip(self._drafter.draft(steps), steps, strict=True)
        ]
        self._end_readings()
        num_drafted = sum(map(len, drafts))
        if prices is not None:
            nodes = chosen_nodes(drafts, prices.seconds, prices.rate)
            drafts = [draft.part(kept) for draft, kept in zip(drafts, nodes, strict=True)]
        return as_rows(drafts, num_drafted)

    def read_rows(self, batch: Batch, budgets: list[int], options: DraftOptions) -> None:
        """Read a batch's texts without drafts; a later call waits for the answer of a sidecar."""
        steps = _steps(batch, budgets, options)
        if isinstance(self._drafter, DrafterClient | SidecarFleet):
            self._readings.append(begun(partial(self._drafter.submit, steps), self._drafter.deadline_s))
        else:
            self._drafter.draft(steps)

    def finish(self, session_id: int) -> None:
        """End a session, after its text has been read."""
        if self._readings:
            self._ended.append(session_id)
        else:
            self._drafter.finish(session_id)

    def close(self) -> None:
        """Close the drafter."""
        self._end_readings()
        self._drafter.close()

    def _end_readings(self) -> None:
        """Wait for the answers to all texts, and end the sessions that waited for this."""
        readings, self._readings = self._readings, []
        for wait in readings:
            wait()
        ended, self._ended = self._ended, []
        for session_id in ended:
            self._drafter.finish(session_id)

    def _usable(self, draft: Draft, budget: int) -> Draft:
        draft = draft if self._makes_trees else draft.best_path()
        return draft if len(draft) <= budget else EMPTY_DRAFT


def _steps(batch: Batch, budgets: list[int], options: DraftOptions, least: float = 0.0) -> list[SequenceStep]:
    return [
        SequenceStep(session_id, text, max(0, budget), options=options, least_probability=least)
        for session_id, text, budget in zip(batch.session_ids, batch.texts, budgets, strict=True)
    ]


def as_rows(drafts: Sequence[Draft], num_drafted: int | None = None) -> RowDrafts:
    """Return drafts in the row format of engines.

    Args:
        drafts: one draft per row.
        num_drafted: number of nodes before some were dropped; None if none were dropped.
    """
    all_have = all(len(draft) == len(draft.path_probabilities) for draft in drafts)
    return RowDrafts(
        [len(draft) for draft in drafts],
        [token for draft in drafts for token in draft.token_ids],
        [parent for draft in drafts for parent in draft.parents],
        [each for draft in drafts for each in draft.path_probabilities] if all_have else [],
        num_drafted,
    )
