"""Decoding with this project's engine, measured. All that the benches know of the engine is here."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from speculant_graph.config import DraftConfig, GenerationConfig, VerifierConfig
from speculant_graph.types import Draft, Drafter, DrafterState, DrafterStatistics, SequenceStep, SessionOptions
from speculant_verifier.bench.cases import Case
from speculant_verifier.bench.tally import PHASES, Decoded, DecodedRow
from speculant_verifier.engine import Engine, Request
from speculant_verifier.model import TargetModel
from speculant_verifier.speculation.controller import Cost


class OwnDecoding:
    """One engine, which keeps what it learns of its drafts from call to call."""

    def __init__(
        self, target: TargetModel, drafter: Drafter, draft: DraftConfig, num_rows: int, cost: Cost | None = None
    ) -> None:
        """Make the engine.

        Args:
            target: the model.
            drafter: where drafts come from; it is not closed.
            draft: how they are made; ``k`` of 0 decodes plainly.
            num_rows: sequences decoded together.
            cost: what passes cost, for speculation 'auto'.
        """
        config = VerifierConfig(max_batch_size=num_rows, prefix_cache=0)  # every way reads the prompts itself
        self._engine = Engine(target, drafter, config, draft, cost=cost)

    def decode(self, cases: Sequence[Case], config: GenerationConfig) -> Decoded:
        """Decode requests.

        Args:
            cases: the requests.
            config: how tokens are chosen; the lengths are those of the requests.
        """
        before = replace(self._engine.totals)
        requests = [
            Request(
                index,
                case.prompt,
                config.model_copy(update={"max_tokens": case.max_tokens} | _forced_settings(case)),
                grammar=case.grammar,
                hint=case.hint,
                forced=case.forced or (),
            )
            for index, case in enumerate(cases)
        ]
        rows = [DecodedRow() for _ in cases]
        started = time.perf_counter()
        for emission in self._engine.run(requests):
            row = rows[emission.sequence.index]
            row.token_ids += emission.token_ids
            row.arrivals.append((time.perf_counter() - started, len(emission.token_ids)))
            row.num_steps += 1
            row.num_accepted += emission.num_accepted
            if emission.finish_reason is not None:
                row.num_drafted = sum(emission.sequence.drafted_by_depth)
                row.num_steps_without_drafter = emission.sequence.num_steps_without_drafter
        total_s = time.perf_counter() - started
        totals = self._engine.totals
        phases = {
            phase: getattr(totals, f"{phase}_s") - getattr(before, f"{phase}_s") for phase in (*PHASES[:-1], "prefill")
        }
        return Decoded(
            rows=rows,
            total_s=total_s,
            num_passes=totals.num_passes - before.num_passes,
            num_nodes=totals.num_nodes - before.num_nodes,
            num_rows=totals.num_rows - before.num_rows,
            phase_s={**phases, "other": total_s - sum(phases.values())},
        )


class WrongDrafter:
    """Makes every drafted token another one, with all that is promised of it: drafts that never pay."""

    def __init__(self, drafter: Drafter, vocabulary_size: int) -> None:
        """Pass everything on to ``drafter``."""
        self._drafter, self._vocabulary_size = drafter, vocabulary_size

    @property
    def state(self) -> DrafterState:
        """The drafter's."""
        return self._drafter.state

    @property
    def statistics(self) -> DrafterStatistics:
        """The drafter's."""
        return self._drafter.statistics

    def open(self, session_id: int, options: SessionOptions | None = None) -> None:
        """Begin a session."""
        self._drafter.open(session_id, options)

    def draft(self, steps: Sequence[SequenceStep]) -> list[Draft]:
        """Draft what will be rejected."""
        return [
            replace(draft, token_ids=tuple((token + 1) % self._vocabulary_size for token in draft.token_ids))
            for draft in self._drafter.draft(steps)
        ]

    def finish(self, session_id: int) -> None:
        """End a session."""
        self._drafter.finish(session_id)

    def close(self) -> None:
        """Do nothing."""


def _forced_settings(case: Case) -> dict[str, object]:
    return {} if case.forced is None else {"ignore_end_tokens": True}
