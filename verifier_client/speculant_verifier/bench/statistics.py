"""What decoding runs came to: counts and times, added up, and the figures made of them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from speculant_graph.types import TokenId

PHASES = ("draft", "forward", "verify", "commit", "other")
"""Of a step. ``verify``: from logits to accepted tokens, stop checks included."""


@dataclass(eq=False, slots=True)
class DecodedRow:
    """One request, as its reader saw it; filled while it is decoded."""

    token_ids: list[TokenId] = field(default_factory=list)
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    """Seconds since the run began, and how many tokens came then; empty where that is not known."""
    num_steps: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    num_steps_without_drafter: int = 0

    @property
    def tokens_per_step(self) -> float:
        """Tokens per step; one of a single token has no step to speak of."""
        return len(self.token_ids) / max(1, self.num_steps)


@dataclass(frozen=True, slots=True)
class Decoded:
    """One run over some requests."""

    rows: Sequence[DecodedRow]
    """The requests, in order."""
    total_s: float
    """From handing them over to the last token."""
    num_passes: int = 0
    """Forward passes over drafts of the whole batch, where they were counted."""
    phase_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds of phases; empty where they were not measured."""


class DecodingStatistics:
    """Runs of one way of decoding, added up."""

    def __init__(self, runs: Sequence[Decoded]) -> None:
        """Count them, at least one. Decoding begins when every request of a run has its first token."""
        rows = [row for run in runs for row in run.rows]
        self.num_tokens = sum(len(row.token_ids) for row in rows)
        self.num_steps = sum(row.num_steps for row in rows)
        self.num_drafted = sum(row.num_drafted for row in rows)
        self.num_accepted = sum(row.num_accepted for row in rows)
        self.num_steps_without_drafter = sum(row.num_steps_without_drafter for row in rows)
        self.num_passes = sum(run.num_passes for run in runs)
        self.total_s = sum(run.total_s for run in runs)
        self.decode_s = 0.0
        self.num_decode_tokens = 0
        for run in runs:
            arrivals = [row.arrivals for row in run.rows if row.arrivals]
            begun_s = max((each[0][0] for each in arrivals), default=0.0)
            self.decode_s += max((each[-1][0] for each in arrivals), default=0.0) - begun_s
            self.num_decode_tokens += sum(count for each in arrivals for seconds, count in each if seconds > begun_s)
        self._runs, self._rows = runs, rows

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second, prompt reading included."""
        return self.num_tokens / self.total_s

    @property
    def tokens_per_s_without_prompts(self) -> float:
        """Tokens per second without the reading of prompts, where phases were measured."""
        return self.num_tokens / (self.total_s - sum(run.phase_s["prefill"] for run in self._runs))

    @property
    def decode_tokens_per_s(self) -> float:
        """Tokens per second after the first ones; 0 if none came after them."""
        return self.num_decode_tokens / self.decode_s if self.decode_s else 0.0

    @property
    def mean_accepted_tokens(self) -> float:
        """Tokens per step of a request; 1 is plain decoding."""
        return self.num_tokens / max(1, self.num_steps)

    def timing(self) -> dict[str, Any]:
        """Return first-token and inter-arrival times, in milliseconds: what a reader of a stream waits for."""
        times = [[seconds for seconds, _ in row.arrivals] for row in self._rows]
        gaps = [after - before for each in times for before, after in itertools.pairwise(each)] or [0.0]
        return {
            "ttft_ms": round(1e3 * float(np.median([each[0] for each in times])), 3),
            "itl_ms_p50": round(1e3 * float(np.percentile(gaps, 50)), 3),
            "itl_ms_p99": round(1e3 * float(np.percentile(gaps, 99)), 3),
        }

    def phase_ms(self) -> dict[str, float]:
        """Return the milliseconds of every phase in a step of the whole batch."""
        return {
            phase: round(1e3 * sum(run.phase_s[phase] for run in self._runs) / max(1, self.num_passes), 4)
            for phase in PHASES
        }
