"""An engine that replays recorded outputs: passes sleep as long as a curve says, drafts are verified by the record."""

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
    """One sequence that the engine decodes."""

    text: NDArray[np.int32]
    """Prompt and output, of which ``length`` tokens are written."""
    length: int
    tenant: str | None

    @classmethod
    def begin(cls, trace: Trace, tenant: str | None) -> _Row:
        """Begin after the pass that read the prompt, which brought the first token."""
        return cls(np.array([*trace.prompt, *trace.output], np.int32), len(trace.prompt) + 1, tenant)

    def accept(self, token_ids: Sequence[int]) -> int:
        """Take a draft's tokens as far as they agree with the record, and one more; return how many these are."""
        rest = self.text[self.length :].tolist()
        agreed = 0
        while agreed < min(len(token_ids), len(rest)) and token_ids[agreed] == rest[agreed]:
            agreed += 1
        count = min(agreed + 1, len(rest))
        self.length += count
        return count


class LoopPass(NamedTuple):
    """One pass, and the drafting before it."""

    draft_s: float
    """Seconds of drafting."""
    pass_s: float
    """Seconds of the pass, by the curve."""
    num_drafted: int
    """Tokens that were drafted for all rows."""
    num_tokens: int
    """Tokens that the pass brought."""


def passes(
    sessions: EngineSessions,
    traces: Iterator[Trace],
    num_rows: int,
    k: int,
    curve: CostCurve,
    tenants: Sequence[str] | None = None,
) -> Iterator[LoopPass]:
    """Decode traces, ``num_rows`` at a time, until fewer are left, and yield each pass when it is over.

    Args:
        sessions: where drafts come from.
        traces: what is decoded; taken as rows get free.
        num_rows: sequences of a pass.
        k: most tokens that are drafted for a row.
        curve: how long passes take.
        tenants: whose sequences they are, one trace after another, in turns; None names no tenants.
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
