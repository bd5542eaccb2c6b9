"""Drafters without a sidecar: a graph in this process, or nothing."""

from __future__ import annotations

import time
from collections.abc import Sequence

from loguru import logger

from speculant_graph.client.counts import Counts
from speculant_graph.config import DraftConfig
from speculant_graph.draft.generator import DraftGenerator
from speculant_graph.types import EMPTY_DRAFT, Draft, DrafterState, DrafterStatistics, SequenceStep


class LocalDrafter:
    """Drafts from a graph in this process. Sessions are nothing to it: every step brings the whole sequence."""

    def __init__(self, generator: DraftGenerator, config: DraftConfig) -> None:
        """Make a drafter.

        Args:
            generator: where drafts come from.
            config: strategy and cap of q; the number of nodes comes with every step.
        """
        self._generator = generator
        self._config = config
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

    def open(self, session_id: int) -> None:
        """Do nothing."""

    def draft(self, steps: Sequence[SequenceStep]) -> list[Draft]:
        """Draft for a batch; see :class:`~speculant_graph.types.Drafter`."""
        started_s = time.perf_counter()
        self._counts.steps += 1
        try:
            drafts = [self._draft(step) for step in steps]
        except Exception as error:
            # Decoding goes on whatever is wrong with the graph.
            if self._state == "ok":
                logger.warning("drafting failed, going on without drafts: {!r}", error)
            self._state, self._counts.last_failure = "unavailable", repr(error)
            self._counts.failed_steps += 1
            return [EMPTY_DRAFT] * len(steps)
        self._state = "ok"
        self._counts.drafted_nodes += sum(map(len, drafts))
        self._counts.round_trip_s.append(time.perf_counter() - started_s)
        return drafts

    def _draft(self, step: SequenceStep) -> Draft:
        return self._generator.draft(
            step.token_ids[-self._generator.graph.max_order :],
            step.node_budget,
            self._config.strategy,
            seed=step.seed,
            position=len(step.token_ids),
            max_candidates=self._config.max_candidates,
        )

    def finish(self, session_id: int) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


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

    def open(self, session_id: int) -> None:
        """Do nothing."""

    def draft(self, steps: Sequence[SequenceStep]) -> list[Draft]:
        """Return an empty draft for every sequence."""
        return [EMPTY_DRAFT] * len(steps)

    def finish(self, session_id: int) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""
