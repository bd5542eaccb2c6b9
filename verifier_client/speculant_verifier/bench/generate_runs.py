"""Decodes the same requests in every way, in turns, and keeps the figures apart."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from speculant_graph.client import NullDrafter
from speculant_graph.config import DraftConfig, GenerationConfig
from speculant_graph.types import Drafter
from speculant_verifier.bench.cases import Case, CaseGroup
from speculant_verifier.bench.own_decoding import OwnDecoding
from speculant_verifier.bench.tally import PHASES, Decoded, Tally
from speculant_verifier.bench.transformers_decoding import PROMPT_LOOKUP_TOKENS, decode_transformers
from speculant_verifier.model import TargetModel
from speculant_verifier.speculation import CostTable, measure_costs
from speculant_verifier.speculation.controller import Cost

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from speculant_graph.bench.replay_progress import BenchProgress

PLAIN, SPECULATIVE, TRANSFORMERS, PROMPT_LOOKUP, ASSISTED = (
    "plain", "speculative", "transformers", "prompt_lookup", "assisted",
)  # fmt: skip

_WARM_UP_PROMPT, _WARM_UP_TOKENS = 32, 8
_COST_BUDGET_S = 8.0
_LONGEST_COST_CONTEXT = 2_048
_FIRST_DOUBLINGS = (1, 2, 4, 8, 16, 32, 64)


@dataclass(eq=False, slots=True)
class Outcome:
    """What came of some requests."""

    name: str
    num_requests: int = 0
    tallies: dict[str, Tally] = field(default_factory=dict)
    """By way of decoding."""
    is_identical: dict[str, bool] = field(default_factory=dict)
    """Whether a way emitted what plain decoding did, and the record where it was forced."""
    costs: CostTable | None = None
    """What passes took, where that was measured."""

    def add(self, way: str, run: Decoded, *, is_identical: bool) -> None:
        """Count a run."""
        self.tallies.setdefault(way, Tally()).add(run)
        self.is_identical[way] = self.is_identical.get(way, True) and is_identical

    def decode_speedup(self) -> float | None:
        """Return how much sooner drafts decode, prompt reading left out; None without tokens behind the first."""
        plain = self.tallies[PLAIN].decode_tokens_per_s
        return self.tallies[SPECULATIVE].decode_tokens_per_s / plain if plain else None

    def possible_speedup(self, batch: int) -> float | None:
        """Return what drafts would gain if a step took nothing but its pass: tokens of a step by its relative cost."""
        if self.costs is None:
            return None
        tally = self.tallies[SPECULATIVE]
        return tally.mean_accepted_tokens / self.costs.relative(batch, tally.mean_nodes)


class GenerateRuns:
    """One model, several ways of decoding."""

    def __init__(
        self,
        target: TargetModel,
        config: GenerationConfig,
        batch: int,
        draft: DraftConfig,
        assistant: PreTrainedModel | None,
    ) -> None:
        """Set up.

        Args:
            target: the model of all ways.
            config: how tokens are chosen.
            batch: requests decoded together.
            draft: how drafts are made.
            assistant: draft model of assisted generation, if there is one.
        """
        self._target, self._config, self.batch = target, config, batch
        self._draft, self._assistant = draft, assistant

    def run(
        self, group: CaseGroup, drafter: Drafter, cost: Cost | None, total: Outcome, progress: BenchProgress
    ) -> Outcome:
        """Decode a group of requests in every way; count it in ``total``, too."""
        ways = self._ways(drafter, cost)
        outcome = Outcome(group.name, len(group.cases))
        total.num_requests += len(group.cases)
        progress.begin(f"{group.name}: warming up")
        warm_up = self._warm_up()
        for decode in ways.values():
            decode([warm_up] * self.batch)
        names = list(ways)
        chunks = list(_chunks(group.cases, self.batch))
        tell = progress.teller(f"{group.name}: decoding")
        for number, cases in enumerate(chunks):
            shift = number % len(names)
            runs = {}
            for done, name in enumerate(names[shift:] + names[:shift]):
                tell(number * len(names) + done, len(chunks) * len(names))
                runs[name] = ways[name](cases)
            for name in names:
                is_identical = all(
                    tuple(row.token_ids) == (tuple(plain.token_ids) if case.forced is None else case.forced)
                    for row, plain, case in zip(runs[name].rows, runs[PLAIN].rows, cases, strict=True)
                )
                outcome.add(name, runs[name], is_identical=is_identical)
                total.add(name, runs[name], is_identical=is_identical)
        tell(1, 1)
        return outcome

    def measure_costs(self, group: CaseGroup, outcome: Outcome, progress: BenchProgress) -> None:
        """Measure what passes take with about as many tokens in the cache as the group's requests have."""
        lengths = [len(case.prompt) + case.max_tokens // 2 for case in group.cases]
        context = min(_LONGEST_COST_CONTEXT, sum(lengths) // len(lengths))
        widest = self._draft.k + 1
        tokens = [number for number in _FIRST_DOUBLINGS if number < widest] + [widest]
        label = f"{group.name}: measuring forward passes"
        outcome.costs = measure_costs(
            self._target, [self.batch], tokens, context, _COST_BUDGET_S, progress.teller(label)
        )

    def _ways(self, drafter: Drafter, cost: Cost | None) -> dict[str, Callable[[Sequence[Case]], Decoded]]:
        target, config = self._target, self._config

        def own(each: Drafter, draft: DraftConfig) -> Callable[[Sequence[Case]], Decoded]:
            decoding = OwnDecoding(target, each, draft, self.batch, cost)
            return lambda cases: decoding.decode(cases, config)

        def other(**more: Any) -> Callable[[Sequence[Case]], Decoded]:
            return lambda cases: decode_transformers(target, cases, config, more)

        ways = {
            PLAIN: own(NullDrafter(), DraftConfig(k=0)),
            SPECULATIVE: own(drafter, self._draft),
            TRANSFORMERS: other(),
        }
        if self.batch == 1:  # all that transformers' own speculation takes
            ways[PROMPT_LOOKUP] = other(prompt_lookup_num_tokens=PROMPT_LOOKUP_TOKENS)
            if self._assistant is not None:
                ways[ASSISTED] = other(assistant_model=self._assistant)
        return ways

    def _warm_up(self) -> Case:
        generator = random.Random(0)
        prompt = [generator.randrange(self._target.vocabulary_size) for _ in range(_WARM_UP_PROMPT)]
        return Case(tuple(prompt), _WARM_UP_TOKENS)


def generate_figures(outcome: Outcome, batch: int, *, is_greedy: bool) -> dict[str, Any]:
    """Return the figures of an outcome, ready for JSON."""
    tallies = outcome.tallies
    plain, speculative = tallies[PLAIN], tallies[SPECULATIVE]
    figures: dict[str, Any] = {
        "requests": outcome.num_requests,
        "tokens": plain.num_tokens,
        "identical": all(outcome.is_identical[way] for way in _compared(is_greedy=is_greedy)),
        "identical_by_way": outcome.is_identical,
        "speedup": round(speculative.tokens_per_s / plain.tokens_per_s, 4),
        "decode_speedup": _rounded(outcome.decode_speedup()),
        "mean_accepted_tokens": round(speculative.mean_accepted_tokens, 4),
        "acceptance_rate": round(speculative.num_accepted / speculative.num_drafted, 4)
        if speculative.num_drafted
        else 0.0,
        "drafted_per_step": round(speculative.num_drafted / speculative.num_steps, 4),
        "steps": speculative.num_steps,
        "steps_without_drafter": speculative.num_steps_without_drafter,
    }
    for way in (PLAIN, SPECULATIVE, TRANSFORMERS, PROMPT_LOOKUP, ASSISTED):
        tally = tallies.get(way)
        figures[f"{way}_tokens_per_s"] = None if tally is None else round(tally.tokens_per_s, 3)
        figures[f"{way}_decode_tokens_per_s"] = None if tally is None else round(tally.decode_tokens_per_s, 3)
    for way in (PROMPT_LOOKUP, ASSISTED):
        tally = tallies.get(way)
        figures[f"{way}_mean_accepted_tokens"] = None if tally is None else round(tally.mean_accepted_tokens, 4)
    figures |= speculative.timing() | plain.timing("plain_")
    figures["phase_ms"] = speculative.phase_ms(PHASES)
    figures["plain_phase_ms"] = plain.phase_ms(PHASES)
    if outcome.costs is not None:
        measured, possible = outcome.decode_speedup(), outcome.possible_speedup(batch)
        assert possible is not None
        figures["relative_pass_cost"] = round(outcome.costs.relative(batch, speculative.mean_nodes), 4)
        figures["possible_speedup"] = round(possible, 4)
        figures["cost_efficiency"] = None if measured is None else round(measured / possible, 4)
        # The same with the passes of these very runs: measured passes are minima, and their tokens are random.
        in_run = figures["phase_ms"]["forward"] / figures["plain_phase_ms"]["forward"]
        figures["relative_pass_cost_in_run"] = round(in_run, 4)
        figures["cost_efficiency_in_run"] = (
            None if measured is None else round(measured * in_run / speculative.mean_accepted_tokens, 4)
        )
    return figures


def total_efficiency(total: Outcome, outcomes: Sequence[Outcome], batch: int) -> float | None:
    """Return the measured decode speed-up of all groups over what their passes alone would allow."""
    measured = total.decode_speedup()
    if measured is None or any(outcome.costs is None for outcome in outcomes):
        return None
    plain_s = sum(outcome.tallies[PLAIN].decode_s for outcome in outcomes)
    possible_s = sum(outcome.tallies[PLAIN].decode_s / (outcome.possible_speedup(batch) or 1.0) for outcome in outcomes)
    return round(measured * possible_s / plain_s, 4)


def _compared(*, is_greedy: bool) -> tuple[str, ...]:
    """Where tokens are drawn, transformers draws other ones: its random numbers are not ours."""
    return (PLAIN, SPECULATIVE, TRANSFORMERS) if is_greedy else (PLAIN, SPECULATIVE)


def _chunks(cases: Sequence[Case], size: int) -> Iterator[Sequence[Case]]:
    for start in range(0, len(cases), size):
        yield cases[start : start + size]


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
