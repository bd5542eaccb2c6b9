"""Drafters without a sidecar: in this process, and none."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from functools import lru_cache

from loguru import logger

from speculant_graph.client.sessions import Counts, Session
from speculant_graph.config import DraftConfig
from speculant_graph.draft.cost import CostCurve
from speculant_graph.draft.learning.store import LearnedStore
from speculant_graph.draft.options import DraftOptions
from speculant_graph.draft.session_drafter import DraftRequest, SessionDrafter
from speculant_graph.errors import DraftRequestError, GenerationRequestError
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.types import (
    EMPTY_DRAFT,
    CouplingName,
    Draft,
    DrafterState,
    DrafterStatistics,
    SequenceStep,
    SessionOptions,
    SiblingsName,
)


@lru_cache(256)
def _options(
    siblings: SiblingsName,
    coupling: CouplingName | None,
    max_depth: int | None,
    temperature: float | None,
    ignore_cost: bool,
) -> DraftOptions:
    return DraftOptions(
        siblings=siblings, coupling=coupling, max_depth=max_depth, temperature=temperature, ignore_cost=ignore_cost
    )


class LocalDrafter:
    """Drafts in this process, with every strategy: from a graph, and from what the sequences accept."""

    def __init__(
        self,
        graph: NgramGraph | None,
        config: DraftConfig,
        learned: LearnedStore | None = None,
        *,
        cost: CostCurve | None = None,
        vocabulary_size: int | None = None,
    ) -> None:
        """Make a drafter.

        Args:
            graph: the corpus; None drafts from the sequences alone.
            config: how to draft; the number of nodes comes with every step.
            learned: what sequences accept is kept here and helps later ones, and is closed with the drafter; None:
                forgotten with it.
            cost: what verifying costs; drafts end where a further node would not pay.
            vocabulary_size: without a graph, that of the model if it is known.

        Raises:
            ConfigError: the strategy needs a graph.
        """
        self._drafter = SessionDrafter(graph, config, learned=learned, vocabulary_size=vocabulary_size)
        self._cost = cost
        self._sessions: dict[int, Session] = {}
        self._draft_ids = itertools.count(1)
        self._state: DrafterState = "ok"
        self._counts = Counts()

    @property
    def state(self) -> DrafterState:
        """Whether the last step was answered."""
        return self._state

    @property
    def statistics(self) -> DrafterStatistics:
        """Counts since the drafter was made."""
        return self._counts.snapshot()

    def open(self, session_id: int, options: SessionOptions | None = None) -> None:
        """Begin a session for a sequence; one that has begun goes on.

        Raises:
            GenerationRequestError: the options name a graph, and here is but one.
        """
        if session_id in self._sessions:
            return
        wanted = options or SessionOptions()
        if wanted.graph:
            raise GenerationRequestError(
                f"there is no graph '{wanted.graph}' in this process; name none, or use a sidecar"
            )
        learn = wanted.learn is not False
        self._drafter.open(session_id, tenant=wanted.tenant or "", learn=learn, cost=self._cost)
        self._sessions[session_id] = Session(session_id, options=wanted)

    def draft(self, steps: Sequence[SequenceStep]) -> list[Draft]:
        """Draft for a batch; see :class:`~speculant_graph.types.Drafter`."""
        started_s = time.perf_counter()
        self._counts.steps += 1
        try:
            drafts = [
                draft.numbered(next(self._draft_ids))
                for draft in self._drafter.draft([self._request(step) for step in steps])
            ]
        except Exception as error:
            # Decoding goes on whatever is wrong with the graph.
            if self._state == "ok":
                logger.warning("drafting failed, going on without drafts: {!r}", error)
            self._state, self._counts.last_failure = "unavailable", repr(error)
            self._counts.failed_steps += 1
            return [EMPTY_DRAFT] * len(steps)
        for step, draft in zip(steps, drafts, strict=True):
            self._sessions[step.session_id].draft_id = draft.draft_id
        self._state = "ok"
        self._counts.drafted_nodes += sum(map(len, drafts))
        self._counts.round_trip_s.append(time.perf_counter() - started_s)
        return drafts

    def _request(self, step: SequenceStep) -> DraftRequest:
        """Give the drafter what it has not seen of a sequence, and return what is wanted."""
        session = self._sessions.get(step.session_id)
        if session is None or session.holds_another_text(step):
            self.finish(step.session_id)
            self.open(step.session_id, None if session is None else session.options)
            session = self._sessions[step.session_id]
        self._recycle(step, session)
        if session.num_sent < len(step.token_ids):
            self._drafter.accept(step.session_id, step.token_ids[session.num_sent :])
            session.note_sent(step)
        options = _options(step.siblings, step.coupling, step.max_depth, step.temperature, not step.is_priced)
        return DraftRequest(step.session_id, step.node_budget, step.seed, options)

    def _recycle(self, step: SequenceStep, session: Session) -> None:
        """Pass on what the target made of the latest draft; of another draft it would teach nonsense."""
        feedback = session.fitting_feedback(step.feedback)
        if feedback is None:
            return
        session.draft_id = 0  # once
        try:
            self._drafter.recycle(step.session_id, feedback.nodes, feedback.rows)
        except DraftRequestError as error:
            self._counts.last_failure = str(error)

    def finish(self, session_id: int) -> None:
        """End a session; what it accepted helps later ones."""
        self._drafter.close(session_id)
        self._sessions.pop(session_id, None)

    def close(self) -> None:
        """End all sessions and bring what was learned to disk, if there is a store on disk."""
        for session_id in list(self._sessions):
            self.finish(session_id)
        self._drafter.save()
        self._drafter.learned.close()


class NullDrafter:
    """Never drafts: plain decoding."""

    @property
    def state(self) -> DrafterState:
        """Always ``off``."""
        return "off"

    @property
    def statistics(self) -> DrafterStatistics:
        """All zero."""
        return DrafterStatistics()

    def open(self, session_id: int, options: SessionOptions | None = None) -> None:
        """Do nothing."""

    def draft(self, steps: Sequence[SequenceStep]) -> list[Draft]:
        """Return an empty draft for every sequence."""
        return [EMPTY_DRAFT] * len(steps)

    def finish(self, session_id: int) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""
