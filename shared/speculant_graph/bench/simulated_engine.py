"""A simulated engine, which sleeps during passes and verifies drafts by comparison with recorded outputs."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from speculant_graph.bench.texts import Trace
from speculant_graph.budget import CostCurve
from speculant_graph.engines.engine_sessions import EngineSessions


@dataclass(slots=True)
class _Row:
    """A running sequence of the engine."""

    text: NDArray[np.int32]
    """Token ids of the prompt and the output, of which the first ``length`` are already decoded."""
    length: int
    tenant: str | None

    @classmethod
    def begin(cls, trace: Trace, tenant: str | None) -> _Row:
        """Return the row of a trace as it is after the prefill pass, which also generated the first token."""
        return cls(np.array([*trace.prompt, *trace.output], np.int32), len(trace.prompt) + 1, tenant)

    def accept(self, token_ids: Sequence[int]) -> int:
        """Accept drafted tokens while they match the recorded output, plus one; return the number of new tokens."""
        rest = self.text[self.length :].tolist()
        agreed = 0
        while agreed < min(len(token_ids), len(rest)) and token_ids[agreed] == rest[agreed]:
            agreed += 1
        count = min(agreed + 1, len(rest))
        self.length += count
        return count


class LoopPass(NamedTuple):
    """Figures of one simulated pass and of the drafting before it."""

    draft_s: float
    """Seconds of drafting."""
    pass_s: float
    """Seconds of the pass, according to the curve."""
    num_drafted: int
    """Number of tokens drafted for all rows of the pass together."""
    num_tokens: int
    """Number of tokens that the pass generated for all rows together."""


def passes(
    sessions: EngineSessions,
    traces: Iterator[Trace],
    num_rows: int,
    k: int,
    curve: CostCurve,
    tenants: Sequence[str] | None = None,
) -> Iterator[LoopPass]:
    """Decode ``num_rows`` traces at a time until fewer traces are left; yield each pass when it ends.

    Args:
        sessions: source of drafts.
        traces: traces to decode; a free row takes the next one.
        num_rows: sequences per pass.
        k: maximum number of drafted tokens per row.
        curve: cost curve, which gives the time of passes.
        tenants: tenants, assigned to the traces in turn; None for traces without a tenant.
    """
    seconds = curve.seconds(num_rows, num_rows * (1 + k)).tolist()
    waiting = map(_Row.begin, traces, itertools.cycle(tenants or [None]))
    rows = list(islice(waiting, num_rows))
    while len(rows) == num_rows:
        texts = [row.text[: row.length] for row in rows]
        capacities = [min(k, row.text.size - row.length) for row in rows]
        of_tenants = None if tenants is None else [row.tenant for row in rows]
        started_s = time.perf_counter()
        drafts = sessions.draft(texts, capacities, tenants=of_tenants).lists()
        drafted_s = time.perf_counter()
        num_drafted = sum(map(len, drafts))
        pass_s = seconds[num_rows + num_drafted]
        time.sleep(max(0.0, drafted_s + pass_s - time.perf_counter()))
        num_tokens = sum(row.accept(draft) for row, draft in zip(rows, drafts, strict=True))
        yield LoopPass(drafted_s - started_s, pass_s, num_drafted, num_tokens)
        running = [row for row in rows if row.length < row.text.size]
        rows = running + list(islice(waiting, num_rows - len(running)))
