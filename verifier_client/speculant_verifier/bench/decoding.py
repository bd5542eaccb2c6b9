"""Decodes requests in interleaved trials, with this project's engine or another one, and computes statistics."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from speculant_graph.bench.report import Progress, alternate
from speculant_graph.config import DraftConfig, GenerationConfig, VerifierConfig
from speculant_graph.types import Drafter, TokenId
from speculant_verifier.bench.workload import BenchRequest

if TYPE_CHECKING:
    from speculant_graph.budget import StepBudget
    from speculant_verifier.engine import Request
    from speculant_verifier.model import TargetModel

PHASES = ("draft", "forward", "verify", "commit", "other")
"""Phases into which the duration of a decoding step is divided. Phase ``verify`` begins with the logits, ends with the
accepted tokens, and includes stop checks."""


@dataclass(eq=False, slots=True)
class DecodedRow:
    """Result of one request, as its client sees it; filled in during decoding."""

    token_ids: list[TokenId] = field(default_factory=list)
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    """Arrivals of tokens: pairs of seconds since the start of the run and number of tokens; empty if unknown."""
    num_steps: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    num_steps_without_drafter: int = 0


@dataclass(frozen=True, slots=True)
class Decoded:
    """Results of one run over a batch of requests."""

    rows: Sequence[DecodedRow]
    """One entry per request, in order of submission."""
    total_s: float
    """Seconds from the submission of the batch to its last token."""
    num_passes: int = 0
    """Number of forward passes that verified the batch's drafts; 0 if not counted."""
    phase_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds spent in each phase; empty if not measured."""


Decode = Callable[[Sequence[BenchRequest]], Decoded]
"""Decodes a batch of requests with one decoding variant, such as decoding without drafts."""


class EngineDecoding:
    """Decodes with one engine, whose learned state persists between calls."""

    def __init__(
        self,
        target: TargetModel,
        drafter: Drafter,
        draft: DraftConfig,
        num_rows: int,
        generation: GenerationConfig | None = None,
        *,
        budget: StepBudget | None = None,
        prefix_cache: int = 0,
    ) -> None:
        """Create the engine.

        Args:
            target: the model.
            drafter: the drafter; the engine does not close it.
            draft: drafting settings; ``k`` = 0 is plain decoding.
            num_rows: number of sequences decoded together.
            generation: sampling settings; the output lengths come from the requests.
            budget: the step budget that limits drafts if speculation is 'auto'.
            prefix_cache: size of the prefix cache in bytes; by default there is none, so every variant prefills its
                prompts.
        """
        from speculant_verifier.engine import Engine

        config = VerifierConfig(max_batch_size=num_rows, prefix_cache=prefix_cache)
        self._engine = Engine(target, drafter, config, draft, budget=budget)
        self._generation = generation or GenerationConfig()

    def decode(self, requests: Sequence[BenchRequest]) -> Decoded:
        """Decode requests."""
        before, num_passes = replace(self._engine.totals.times), self._engine.totals.num_passes
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
        times = self._engine.totals.times
        phase_s = {
            phase: getattr(times, f"{phase}_s") - getattr(before, f"{phase}_s") for phase in (*PHASES[:-1], "prefill")
        }
        phase_s["other"] = total_s - sum(phase_s.values())
        return Decoded(rows, total_s, self._engine.totals.num_passes - num_passes, phase_s)

    def close(self) -> None:
        """Release the engine."""
        self._engine.close()

    def _request(self, index: int, request: BenchRequest) -> Request:
        from speculant_verifier.engine import Request
        from speculant_verifier.rules import teacher_forced

        settings: dict[str, object] = {"max_tokens": request.max_tokens}
        if request.teacher_forced is not None:
            settings["ignore_end_tokens"] = True
        config = self._generation.model_copy(update=settings)
        wrap_target = None if request.teacher_forced is None else teacher_forced(request.teacher_forced)
        return Request(index, request.prompt, config, grammar=request.grammar, wrap_target=wrap_target)


class DecodingStatistics:
    """Totals over the runs of one decoding variant."""

    def __init__(self, runs: Sequence[Decoded]) -> None:
        """Compute the statistics of one or more runs."""
        rows = [row for run in runs for row in run.rows]
        self.num_tokens = sum(len(row.token_ids) for row in rows)
        self.num_steps = sum(row.num_steps for row in rows)
        self.num_drafted = sum(row.num_drafted for row in rows)
        self.num_accepted = sum(row.num_accepted for row in rows)
        self.num_steps_without_drafter = sum(row.num_steps_without_drafter for row in rows)
        self.num_passes = sum(run.num_passes for run in runs)
        self.total_s = sum(run.total_s for run in runs)
        self._runs, self._rows = runs, rows

    @property
    def tokens_per_s(self) -> float:
        """Decoded tokens per second, counting the time of prefill."""
        return self.num_tokens / self.total_s

    @property
    def tokens_per_s_without_prompts(self) -> float:
        """Decoded tokens per second, without the time of prefill; requires measured phases."""
        return self.num_tokens / (self.total_s - sum(run.phase_s["prefill"] for run in self._runs))

    @property
    def mean_accepted_tokens(self) -> float:
        """Mean number of tokens per step of a request; 1 for plain decoding."""
        return self.num_tokens / max(1, self.num_steps)

    def timing(self) -> dict[str, Any]:
        """Return the median time to first token, and percentiles of the inter-token time, in milliseconds."""
        times = [[seconds for seconds, _ in row.arrivals] for row in self._rows]
        gaps = [after - before for each in times for before, after in itertools.pairwise(each)] or [0.0]
        return {
            "ttft_ms": round(1e3 * float(np.median([each[0] for each in times])), 3),
            "itl_ms_p50": round(1e3 * float(np.percentile(gaps, 50)), 3),
            "itl_ms_p99": round(1e3 * float(np.percentile(gaps, 99)), 3),
        }

    def phase_ms(self) -> dict[str, float]:
        """Return the mean milliseconds that a step of the batch spends in each phase."""
        return {
            phase: round(1e3 * sum(run.phase_s[phase] for run in self._runs) / max(1, self.num_passes), 4)
            for phase in PHASES
        }


@dataclass(frozen=True, slots=True)
class Trials:
    """Results of all decoding variants on the same requests."""

    requests: Sequence[BenchRequest]
    """One entry per request, in order of submission."""
    runs: Mapping[str, Sequence[Decoded]]
    """The runs of each decoding variant, one run per batch."""

    def statistics(self, variant: str) -> DecodingStatistics:
        """Return the statistics of one variant."""
        return DecodingStatistics(self.runs[variant])

    def rows(self, variant: str) -> list[DecodedRow]:
        """Return one variant's result for each request."""
        return [row for run in self.runs[variant] for row in run.rows]

    def is_identical(self, variant: str, reference: str) -> bool:
        """Return whether a variant emits the recorded tokens or, if none are recorded, the reference variant's."""
        return not self.differences(variant, reference)

    def differences(self, variant: str, reference: str) -> list[tuple[int, int]]:
        """Return where a variant deviates from the recorded tokens or, if none are recorded, from the reference.

        Returns:
            Pairs (index of a differing request, number of equal tokens before its first difference).
        """
        found = []
        for index, (request, row, plain) in enumerate(
            zip(self.requests, self.rows(variant), self.rows(reference), strict=True)
        ):
            expected = plain.token_ids if request.teacher_forced is None else list(request.teacher_forced)
            if row.token_ids != expected:
                pairs = zip(row.token_ids, expected, strict=False)
                found.append((index, sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))))
        return found

    def __add__(self, other: Trials) -> Trials:
        """Return the combined results of two trials, which must have the same variants."""
        runs = {variant: (*runs, *other.runs[variant]) for variant, runs in self.runs.items()}
        return Trials((*self.requests, *other.requests), runs)


def interleaved(
    variants: Mapping[str, Decode], requests: Sequence[BenchRequest], batch: int, tell: Progress | None = None
) -> Trials:
    """Decode requests with every variant; the variants take turns batch by batch.

    Args:
        variants: the decoding variants, at least one.
        requests: at least one.
        batch: number of requests per batch.
        tell: called with the number of decoded batches.
    """

    def turns(decode: Decode) -> Callable[[int], Decoded]:
        return lambda index: decode(requests[index * batch : (index + 1) * batch])

    by_variant = {variant: turns(decode) for variant, decode in variants.items()}
    return Trials(requests, alternate(by_variant, -(-len(requests) // batch), tell))
