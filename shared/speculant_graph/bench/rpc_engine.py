"""A step as an engine's adapter makes it, by a sidecar and in process, for ``speculant bench rpc``."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from speculant_graph.client import DrafterClient
from speculant_graph.config import ClientConfig
from speculant_graph.draft.cost import CostCurve
from speculant_graph.engines.matching import EngineRow
from speculant_graph.engines.price import KnownCost
from speculant_graph.engines.sessions import EngineSessions
from speculant_graph.errors import SpeculantError
from speculant_graph.types import Drafter

if TYPE_CHECKING:
    from speculant_graph.bench.rpc_measure import Plan


@contextmanager
def engine_steps(
    plan: Plan, config: ClientConfig | None, prompt: int, new: int
) -> Iterator[Callable[[], Awaitable[int]]]:
    """Yield what makes one step for rows that grow, and returns its nanoseconds.

    Args:
        plan: what is measured.
        config: of the sidecar; None: in this process.
        prompt: tokens of a row before its first step.
        new: tokens that a step brings.

    Raises:
        SpeculantError: steps failed.
    """
    drafter: Drafter
    if config is None:
        from speculant_graph.client.local import LocalDrafter

        drafter = LocalDrafter(plan.graph, plan.draft)
    else:
        drafter = DrafterClient(config, tokenizer=None, draft=plan.draft, wants_proposals=False)
    sessions = EngineSessions(
        drafter,
        most_drafted=max(plan.draft.k, 4 * new),  # in steps that are left out, too, a row grows here
        vocabulary_size=plan.vocabulary_size,
        cost=KnownCost(CostCurve((1,), (1.0,))),  # all drafts pay: there are no passes here whose time could be learned
    )
    texts, length = np.array(plan.texts, np.int32), prompt

    async def step() -> int:
        nonlocal length
        length += new
        started_ns = time.perf_counter_ns()
        sessions.draft([EngineRow(texts[row, :length], plan.draft.k, row) for row in range(plan.batch)])
        return time.perf_counter_ns() - started_ns

    try:
        yield step
        failed = drafter.statistics.failed_steps
        if failed or sessions.counts.failed_steps or sessions.counts.sequences > plan.batch:
            raise SpeculantError(f"{failed} steps failed: {drafter.statistics.last_failure}; run it again")
    finally:
        sessions.close()
