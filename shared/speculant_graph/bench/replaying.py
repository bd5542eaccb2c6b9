"""Replays recorded outputs as if a model wrote them again, and records the drafts of each step."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from speculant_graph.bench.texts import Trace
from speculant_graph.budget import CostCurve, StepBudget, chosen_nodes
from speculant_graph.draft.session_drafter import SessionDrafter
from speculant_graph.types import EMPTY_DRAFT, Draft, SequenceStep, TokenId

_LONGEST_NGRAM = 3
_RESAMPLES = 1_000


@dataclass(frozen=True, slots=True)
class ReplayStep:
    """One replayed step: its draft, and how much of the draft was accepted."""

    num_drafted: int
    """Number of nodes in the draft."""
    num_accepted: int
    """Number of nodes on the longest path from the root that agrees with the recorded output."""
    num_tokens: int
    """Number of emitted tokens: the accepted tokens, plus the target's own next token unless the output ends."""
    expected: float | None
    """Number of accepted nodes that the draft's own probabilities predict; None if it has no probabilities."""
    draft_ns: int
    """Duration of the drafting call, in nanoseconds."""


class PromptLookupDrafter:
    """Prompt lookup decoding (Saxena 2023): drafts the tokens after the first occurrence of the last tokens.

    The drafter looks up the last 3 tokens, then the last 2, then the last 1, and uses the first match. Prompt lookup is
    a baseline that inference libraries ship. Prompt lookup needs no graph, drafts for one sequence at a time, learns
    nothing across sequences, and ignores cost.
    """

    def open(self, session_id: int, *, tenant: str = "", learn: bool = False) -> None:
        """Start a sequence."""
        self._tokens: list[TokenId] = []
        self._ends: dict[tuple[TokenId, ...], int] = {}  # end of the first occurrence of an n-gram

    def accept(self, session_id: int, token_ids: Sequence[TokenId]) -> None:
        """Add tokens to the sequence."""
        for token_id in token_ids:
            self._tokens.append(token_id)
            for length in range(1, min(_LONGEST_NGRAM, len(self._tokens)) + 1):
                self._ends.setdefault(tuple(self._tokens[-length:]), len(self._tokens))

    def recycle(self, session_id: int, nodes: Sequence[int], rows: Sequence[Sequence[TokenId]]) -> None:
        """Ignore the target's top tokens, which this strategy does not use."""

    def draft(self, steps: Sequence[SequenceStep]) -> list[Draft]:
        """Draft a chain for each step."""
        return [self._draft(step.node_budget) for step in steps]

    def close(self, session_id: int) -> None:
        """Do nothing, because the next sequence replaces the current sequence."""

    def _draft(self, node_budget: int) -> Draft:
        for length in range(min(_LONGEST_NGRAM, len(self._tokens)), 0, -1):
            start = self._ends[tuple(self._tokens[-length:])]
            if start < len(self._tokens):
                copied = tuple(self._tokens[start : start + node_budget])
                return Draft(copied, tuple(range(len(copied))), terminated_early=len(copied) < node_budget)
        return EMPTY_DRAFT


def replay(
    drafter: SessionDrafter | PromptLookupDrafter,
    traces: Sequence[Trace],
    node_budget: int,
    *,
    tenant: str = "",
    learn: bool = False,
    cost: CostCurve | None = None,
    tell: Callable[[int, int], None] = lambda done, total: None,
) -> list[list[ReplayStep]]:
    """Replay traces one after another and return the steps of each.

    Args:
        drafter: the drafter, which has no open sessions.
        traces: the recorded prompts and outputs.
        node_budget: maximum number of nodes per draft.
        tenant: the tenant of the traces.
        learn: let later traces draft from the accepted tokens of earlier ones, and pass the target's own tokens to
            token recycling.
        cost: the cost of passes; each draft keeps only the nodes that pay. If ``cost`` is None, every draft keeps all
            its nodes.
        tell: called with the number of replayed traces and the number of all traces.
    """
    replayed = []
    budget = None if cost is None else StepBudget(cost)
    for session_id, trace in enumerate(traces, start=1):
        drafter.open(session_id, tenant=tenant, learn=learn)
        drafter.accept(session_id, trace.prompt)
        steps: list[ReplayStep] = []
        position = 0
        while position < len(trace.output):
            start_ns = time.perf_counter_ns()
            prices = None if budget is None else budget.prices(1, node_budget)
            least = 0.0 if prices is None else prices.least_probability
            (draft,) = drafter.draft([SequenceStep(session_id, (), node_budget, least_probability=least)])
            draft_ns = time.perf_counter_ns() - start_ns
            if prices is not None:
                draft = draft.part(chosen_nodes([draft], prices.seconds, prices.rate)[0])
            assert len(draft) <= node_budget, "a draft over its budget would be compared unfairly"
            path = agreeing_path(draft, trace.output[position : position + node_budget])
            accepted = trace.output[position : position + len(path) + 1]
            if learn:
                # A record has only one target token per position: the generated token.
                nodes = (0, *(node + 1 for node in path))[: len(accepted)]
                drafter.recycle(session_id, nodes, [(token_id,) for token_id in accepted])
            drafter.accept(session_id, accepted)
            expected = sum(draft.path_probabilities) if draft.path_probabilities else None
            steps.append(ReplayStep(len(draft), len(path), len(accepted), expected, draft_ns))
            if budget is not None:
                budget.observe(1, 1 + len(draft), len(accepted), 1.0, 0.0, len(draft))
            position += len(accepted)
        replayed.append(steps)
        drafter.close(session_id)
        tell(session_id, len(traces))
    return replayed


def agreeing_path(draft: Draft, output: Sequence[TokenId]) -> tuple[int, ...]:
    """Return the nodes of the longest path from the root whose tokens are a prefix of the output."""
    depths: list[int] = []  # depths of agreeing nodes; 0 for others
    deepest = -1
    for token_id, parent in zip(draft.token_ids, draft.parents, strict=True):
        depth = 1 if parent == 0 else depths[parent - 1] + 1
        is_reached = parent == 0 or depths[parent - 1] > 0
        agrees = is_reached and depth <= len(output) and token_id == output[depth - 1]
        depths.append(depth if agrees else 0)
        if agrees and (deepest < 0 or depth > depths[deepest]):
            deepest = len(depths) - 1
    path: list[int] = []
    while deepest >= 0:
        path.append(deepest)
        deepest = draft.parents[deepest] - 1
    return tuple(reversed(path))


def replay_figures(replayed: Sequence[Sequence[ReplayStep]], cost: CostCurve | None) -> dict[str, Any]:
    """Return the figures of one run, ready for JSON.

    Args:
        replayed: the steps of every trace, at least one per trace.
        cost: the cost of passes; without it, ``relative_speed`` and its interval are None.
    """
    steps = [step for of_trace in replayed for step in of_trace]
    num_tokens = sum(step.num_tokens for step in steps)
    num_drafted = sum(step.num_drafted for step in steps)
    num_accepted = sum(step.num_accepted for step in steps)
    expected = [step.expected for step in steps if step.expected is not None]
    draft_us = np.array([step.draft_ns for step in steps]) / 1e3
    figures = {
        "traces": len(replayed),
        "output_tokens": num_tokens,
        "steps": len(steps),
        "mean_accepted_tokens": round(num_tokens / len(steps), 4),
        "mean_accepted_tokens_interval": _interval(replayed, len),
        "drafted": num_drafted,
        "accepted": num_accepted,
        "acceptance_rate": _ratio(num_accepted, num_drafted),
        "drafted_per_step": round(num_drafted / len(steps), 4),
        "empty_rate": round(sum(not step.num_drafted for step in steps) / len(steps), 4),
        "expected_over_actual": _ratio(sum(expected), num_accepted) if expected else None,
        "draft_us_p50": round(float(np.percentile(draft_us, 50)), 2),
        "draft_us_p99": round(float(np.percentile(draft_us, 99)), 2),
        "relative_speed": None,
        "relative_speed_interval": None,
    }
    if cost is not None:

        def spent(some: Sequence[ReplayStep]) -> float:
            return sum(cost.relative(1 + step.num_drafted) for step in some)

        figures["relative_speed"] = round(num_tokens / spent(steps), 4)
        figures["relative_speed_interval"] = _interval(replayed, spent)
    return figures


def _interval(
    replayed: Sequence[Sequence[ReplayStep]], spent_on: Callable[[Sequence[ReplayStep]], float]
) -> list[float]:
    """Return the 95 % confidence interval of tokens per step or per cost, by a percentile bootstrap over traces."""
    tokens = np.array([sum(step.num_tokens for step in of_trace) for of_trace in replayed])
    spent = np.array([spent_on(of_trace) for of_trace in replayed])
    drawn = np.random.default_rng(0).integers(0, len(replayed), (_RESAMPLES, len(replayed)))
    means = tokens[drawn].sum(axis=1) / spent[drawn].sum(axis=1)
    return [round(float(bound), 4) for bound in np.percentile(means, (2.5, 97.5))]


def _ratio(above: float, below: float) -> float | None:
    return round(above / below, 4) if below else None
