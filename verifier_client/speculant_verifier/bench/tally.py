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
    """Seconds since the run began, and how many tokens came then."""
    num_steps: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    num_steps_without_drafter: int = 0


@dataclass(frozen=True, slots=True)
class Decoded:
    """One run over some requests."""

    rows: Sequence[DecodedRow]
    """The requests, in order."""
    total_s: float
    """From handing them over to the last token."""
    num_passes: int = 0
    """Forward passes over drafts, where they were counted; so with the next two."""
    num_nodes: int = 0
    """Tokens in them."""
    num_rows: int = 0
    """Rows in them."""
    phase_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds of phases; empty where they were not measured."""


class Tally:
    """Runs of one way of decoding, added up."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.num_tokens = self.num_steps = self.num_drafted = self.num_accepted = 0
        self.num_passes = self.num_nodes = self.num_rows = self.num_steps_without_drafter = 0
        self.total_s = self.decode_s = 0.0
        self.num_decode_tokens = 0
        self._first_s: list[float] = []
        self._gaps_s: list[float] = []
        self._phase_s: dict[str, float] = {}

    def add(self, run: Decoded) -> None:
        """Count a run. Decoding begins when every request of it has its first token: prompts take as long any way."""
        self.total_s += run.total_s
        begun_s = max(row.arrivals[0][0] for row in run.rows)
        self.decode_s += max(row.arrivals[-1][0] for row in run.rows) - begun_s
        for row in run.rows:
            times = [seconds for seconds, _ in row.arrivals]
            self.num_tokens += len(row.token_ids)
            self.num_decode_tokens += sum(number for seconds, number in row.arrivals if seconds > begun_s)
            self._first_s.append(times[0])
            self._gaps_s += [after - before for before, after in itertools.pairwise(times)]
            self.num_steps += row.num_steps
            self.num_drafted += row.num_drafted
            self.num_accepted += row.num_accepted
            self.num_steps_without_drafter += row.num_steps_without_drafter
        self.num_passes += run.num_passes
        self.num_nodes += run.num_nodes
        self.num_rows += run.num_rows
        for phase, seconds in run.phase_s.items():
            self._phase_s[phase] = self._phase_s.get(phase, 0.0) + seconds

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second, prompt reading included."""
        return self.num_tokens / self.total_s

    @property
    def decode_tokens_per_s(self) -> float:
        """Tokens per second after the first ones; 0 if none came after them."""
        return self.num_decode_tokens / self.decode_s if self.decode_s else 0.0

    @property
    def mean_accepted_tokens(self) -> float:
        """Tokens per step of a request; 1 is plain decoding."""
        return self.num_tokens / self.num_steps

    @property
    def mean_nodes(self) -> float:
        """Tokens of a row in a pass: the last one and the drafted nodes."""
        return self.num_nodes / self.num_rows

    def timing(self, prefix: str = "") -> dict[str, Any]:
        """Return first-token and inter-arrival times, in milliseconds: what a reader of a stream waits for."""
        gaps = np.array(self._gaps_s or [0.0])
        return {
            f"{prefix}ttft_ms": round(1e3 * float(np.median(self._first_s)), 3),
            f"{prefix}itl_ms_p50": round(1e3 * float(np.percentile(gaps, 50)), 3),
            f"{prefix}itl_ms_p99": round(1e3 * float(np.percentile(gaps, 99)), 3),
        }

    def phase_ms(self, phases: Sequence[str]) -> dict[str, float]:
        """Return the milliseconds of phases in a step of the whole batch."""
        return {phase: round(1e3 * self._phase_s.get(phase, 0.0) / max(1, self.num_passes), 4) for phase in phases}
