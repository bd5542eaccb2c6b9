"""Decoding with this project's engine, measured. All that the benches use of the engine is here."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from speculant_graph.config import DraftConfig, GenerationConfig, VerifierConfig
from speculant_graph.types import Drafter
from speculant_verifier.bench.statistics import PHASES, Decoded, DecodedRow
from speculant_verifier.bench.workload import BenchRequest
from speculant_verifier.engine import Engine, Request
from speculant_verifier.model import TargetModel
from speculant_verifier.speculation.controller import Cost


class EngineDecoding:
    """One engine, which keeps what it learns of its drafts from call to call."""

    def __init__(
        self,
        target: TargetModel,
        drafter: Drafter,
        draft: DraftConfig,
        num_rows: int,
        generation: GenerationConfig | None = None,
        *,
        cost: Cost | None = None,
        prefix_cache: int = 0,
    ) -> None:
        """Make the engine.

        Args:
            target: the model.
            drafter: where drafts come from; it is not closed.
            draft: how they are made; ``k`` of 0 decodes plainly.
            num_rows: sequences decoded together.
            generation: how tokens are chosen; the lengths are those of the requests.
            cost: what passes cost, for speculation 'auto'.
            prefix_cache: bytes for finished prompts; by default every way reads its prompts itself.
        """
        config = VerifierConfig(max_batch_size=num_rows, prefix_cache=prefix_cache)
        self._engine = Engine(target, drafter, config, draft, cost=cost)
        self._generation = generation or GenerationConfig()

    def decode(self, requests: Sequence[BenchRequest]) -> Decoded:
        """Decode requests."""
        before = replace(self._engine.totals)
        rows = [DecodedRow() for _ in requests]
        started = time.perf_counter()
        for output in self._engine.run([self._request(index, each) for index, each in enumerate(requests)]):
            row = rows[output.sequence.index]
            row.token_ids += output.token_ids
            row.arrivals.append((time.perf_counter() - started, len(output.token_ids)))
            row.num_steps += 1
            row.num_accepted += output.num_accepted
            if output.finish_reason is not None:
                row.num_drafted = sum(output.sequence.drafted_by_depth)
                row.num_steps_without_drafter = output.sequence.num_steps_without_drafter
        total_s = time.perf_counter() - started
        totals = self._engine.totals
        phase_s = {
            phase: getattr(totals, f"{phase}_s") - getattr(before, f"{phase}_s") for phase in (*PHASES[:-1], "prefill")
        }
        phase_s["other"] = total_s - sum(phase_s.values())
        return Decoded(rows, total_s, totals.num_passes - before.num_passes, phase_s)

    def close(self) -> None:
        """Let the engine go."""
        self._engine.close()

    def _request(self, index: int, request: BenchRequest) -> Request:
        settings: dict[str, object] = {"max_tokens": request.max_tokens}
        if request.forced is not None:
            settings["ignore_end_tokens"] = True
        config = self._generation.model_copy(update=settings)
        return Request(index, request.prompt, config, grammar=request.grammar, forced=request.forced or ())
