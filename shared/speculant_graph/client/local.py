"""Drafters without a sidecar: one in this process, and one that never drafts."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

from loguru import logger

from speculant_graph._core import Batch, RowDrafts
from speculant_graph.budget import StepPrices
from speculant_graph.client.session_registry import Counts
from speculant_graph.config import DraftConfig
from speculant_graph.draft.learning.learned_store import LearnedStore
from speculant_graph.draft.options import DEFAULT_OPTIONS, DraftOptions
from speculant_graph.draft.session_drafter import SessionDrafter
from speculant_graph.errors import GenerationRequestError
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.strategies import STRATEGIES, Capabilities
from speculant_graph.types import (
    EMPTY_DRAFT,
    Draft,
    DrafterState,
    DrafterStatistics,
    PassReport,
    SequenceStep,
    SessionOptions,
)


class LocalDrafter:
    """Drafts in this process, with any n-gram strategy, from graphs and from accepted tokens."""

    def __init__(
        self,
        graph: NgramGraph | Sequence[NgramGraph] | None,
        config: DraftConfig,
        learned: LearnedStore | None = None,
        *,
        vocabulary_size: int | None = None,
    ) -> None:
        """Make a drafter.

        Args:
            graph: one graph, or several as layers; None drafts from the sequences alone.
            config: draft settings; each step sets its own number of nodes.
            learned: store that keeps accepted tokens for later sequences; it is closed together with the drafter. With
                None, accepted tokens stay in memory until the drafter is closed.
            vocabulary_size: vocabulary size of the model, if known; used only if there is no graph.

        Raises:
            ConfigError: the strategy needs a graph.
        """
        self._drafter = SessionDrafter(graph, config, learned=learned, vocabulary_size=vocabulary_size)
        self.capabilities = STRATEGIES[config.strategy]
        """Capabilities of the drafting strategy."""
        self._settings = self._drafter.settings(DEFAULT_OPTIONS)
        self.has_neural = any(each.trie.num_model_words for each in self._drafter.graphs)
        """Whether a graph has a neural model."""
        self._sessions: dict[int, SessionOptions] = {}
        self._draft_ids = itertools.count(1)
        self.state: DrafterState = "ok"
        """Whether the drafter answered the last step."""
        self._counts = Counts()

    @property
    def statistics(self) -> DrafterStatistics:
        """Counts of steps, drafts and failures since the drafter was made."""
        return self._counts.snapshot()

    def open(self, session_id: int, options: SessionOptions | None = None) -> None:
        """Open a session for a sequence, if it is not open.

        Raises:
            GenerationRequestError: the options name a graph, but this drafter can't choose between graphs.
        """
        if session_id in self._sessions:
            return
        wanted = options or SessionOptions()
        if wanted.graph:
            raise GenerationRequestError(
                f"there is no {{field}} '{wanted.graph}' in this process",
                fix="name none, or use a sidecar",
                field="graph",
            )
        self._drafter.open(session_id, tenant=wanted.tenant or "", learn=wanted.learn is not False)
        self._sessions[session_id] = wanted

    def draft(self, steps: Sequence[SequenceStep]) -> list[Draft]:
        """Draft for a batch; see :class:`~speculant_graph.types.Drafter`."""
        started_s = time.perf_counter()
        self._counts.steps += 1
        try:
            drafts = self._draft(steps)
        except Exception as error:
            # Decoding must continue, even with a broken graph.
            if self.state == "ok":
                logger.warning("drafting failed, continuing without drafts: {!r}", error)
            self.state, self._counts.last_failure = "unavailable", repr(error)
            self._counts.failed_steps += 1
            return [EMPTY_DRAFT] * len(steps)
        self.state = "ok"
        self._counts.drafted_nodes += sum(len(draft.token_ids) for draft in drafts)
        self._counts.round_trip_s.append(time.perf_counter() - started_s)
        return drafts

    def _draft(self, steps: Sequence[SequenceStep]) -> list[Draft]:
        for step in steps:
            self.open(step.session_id)
        numbers, texts = [step.session_id for step in steps], [step.token_ids for step in steps]
        for session_id in self._drafter.steps.changed(numbers, texts):
            options = self._sessions[session_id]
            self.finish(session_id)
            self.open(session_id, options)
        return self._drafter.draft(steps, draft_id=next(self._draft_ids))

    def draft_rows(
        self,
        batch: Batch,
        budgets: list[int],
        prices: StepPrices | None = None,
        options: DraftOptions = DEFAULT_OPTIONS,
    ) -> RowDrafts:
        """Draft for the rows of an engine's batch in one call of the C++ core; see :class:`RowDrafter`."""
        settings = self._settings if options is DEFAULT_OPTIONS else self._drafter.settings(options)
        if prices is None:
            return self._drafter.steps.draft_rows(batch, budgets, settings, 0.0, None, 0.0)
        return self._drafter.steps.draft_rows(
            batch, budgets, settings, prices.least_probability, prices.seconds, prices.rate
        )

    def observe(self, report: PassReport) -> float:
        """Ignore the pass report, and return a drafting time of 0 s, because drafting takes little time."""
        return 0.0

    def finish(self, session_id: int) -> None:
        """End a session; later sessions may draft from its accepted tokens."""
        if self._sessions.pop(session_id, None) is not None:
            self._drafter.close(session_id)

    def close(self) -> None:
        """End all sessions, and save learned data if the store is on disk."""
        for session_id in list(self._sessions):
            self.finish(session_id)
        self._drafter.save()
        self._drafter.learned.close()


class NullDrafter:
    """A drafter that never drafts, so that decoding is plain."""

    capabilities = Capabilities(summary="nothing", evidence="nothing", runs_by="verifier")
    """Capabilities without drafts."""
    state: DrafterState = "off"
    """Always ``off``."""

    @property
    def statistics(self) -> DrafterStatistics:
        """All zero."""
        return DrafterStatistics()

    def open(self, session_id: int, options: SessionOptions | None = None) -> None:
        """Do nothing."""

    def draft(self, steps: Sequence[SequenceStep]) -> list[Draft]:
        """Return an empty draft for every sequence."""
        return [EMPTY_DRAFT] * len(steps)

    def observe(self, report: PassReport) -> float:
        """Ignore the pass report, and return a drafting time of 0 s, because drafting takes little time."""
        return 0.0

    def finish(self, session_id: int) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""
