"""Decoding with this project's engine, measured. All that the benches know of the engine is here."""

from __future__ import annotations

import time
from collections.abc import Sequence

from speculant_graph.config import DraftConfig, GenerationConfig, VerifierConfig
from speculant_graph.types import Drafter
from speculant_verifier.bench.cases import Case
from speculant_verifier.bench.tally import PHASES, Decoded, DecodedRow
from speculant_verifier.engine import Engine, Request
from speculant_verifier.model import TargetModel
from speculant_verifier.speculation.controller import Cost


def decode_own(
    target: TargetModel,
    drafter: Drafter,
    cases: Sequence[Case],
    config: GenerationConfig,
    num_rows: int,
    node_budget: int,
    cost: Cost | None = None,
) -> Decoded:
    """Decode requests, at most ``num_rows`` at a time.

    Args:
        target: the model.
        drafter: where drafts come from; it is not closed.
        cases: the requests.
        config: how tokens are chosen; the lengths are those of the requests.
        num_rows: sequences decoded together.
        node_budget: most nodes drafted per sequence and step; 0 decodes plainly.
        cost: what passes cost, for speculation 'auto'.
    """
    engine = Engine(target, drafter, VerifierConfig(max_batch_size=num_rows), DraftConfig(k=node_budget), cost=cost)
    requests = [
        Request(
            index,
            case.prompt,
            config.model_copy(update={"max_tokens": case.max_tokens} | _forced_settings(case)),
            forced=case.forced or (),
        )
        for index, case in enumerate(cases)
    ]
    rows = [DecodedRow() for _ in cases]
    started = time.perf_counter()
    for emission in engine.run(requests):
        row = rows[emission.sequence.index]
        row.token_ids += emission.token_ids
        row.arrivals.append((time.perf_counter() - started, len(emission.token_ids)))
        row.num_steps += 1
        row.num_accepted += emission.num_accepted
        if emission.finish_reason is not None:
            row.num_drafted = sum(emission.sequence.drafted_by_depth)
            row.num_steps_without_drafter = emission.sequence.num_steps_without_drafter
    total_s = time.perf_counter() - started
    totals = engine.totals
    phases = {phase: getattr(totals, f"{phase}_s") for phase in (*PHASES[:-1], "prefill")}
    return Decoded(
        rows=rows,
        total_s=total_s,
        num_passes=totals.num_passes,
        num_nodes=totals.num_nodes,
        num_rows=totals.num_rows,
        phase_s={**phases, "other": total_s - sum(phases.values())},
    )


def _forced_settings(case: Case) -> dict[str, object]:
    return {} if case.forced is None else {"ignore_end_tokens": True}
