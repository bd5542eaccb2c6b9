"""The figures of a replay, from its steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from speculant_graph.bench.replay_loop import PROMPT_LOOKUP, ReplayStep

if TYPE_CHECKING:
    from speculant_graph.draft.cost import CostCurve

_RESAMPLES = 1_000


def replay_figures(replayed: Sequence[Sequence[ReplayStep]], cost: CostCurve | None, seed: int) -> dict[str, Any]:
    """Return the figures of one run, ready for JSON.

    Args:
        replayed: the steps of every trace, at least one each.
        cost: prices the drafts; without it ``relative_speed`` and its interval are None.
        seed: seed of the interval's resampling.
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
        "mean_accepted_tokens_interval": _interval(replayed, len, seed),
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
            return sum(cost.at(1 + step.num_drafted) for step in some)

        figures["relative_speed"] = round(num_tokens / spent(steps), 4)
        figures["relative_speed_interval"] = _interval(replayed, spent, seed)
    return figures


def compare_with_prompt_lookup(results: Sequence[dict[str, Any]]) -> None:
    """Add ``over_prompt_lookup`` to every run: its tokens per step over those of prompt lookup at the same budget.

    It is None where prompt lookup was not replayed.
    """
    baselines = {
        (run["workload"], run["budget"]): run["mean_accepted_tokens"]
        for run in results
        if run["strategy"] == PROMPT_LOOKUP
    }
    for run in results:
        baseline = baselines.get((run["workload"], run["budget"]))
        run["over_prompt_lookup"] = None if baseline is None else round(run["mean_accepted_tokens"] / baseline, 4)


def _interval(
    replayed: Sequence[Sequence[ReplayStep]], spent_on: Callable[[Sequence[ReplayStep]], float], seed: int
) -> list[float]:
    """Return the interval that holds 95 % of tokens over what was spent when traces are drawn anew.

    It is a percentile bootstrap.
    """
    tokens = np.array([sum(step.num_tokens for step in of_trace) for of_trace in replayed])
    spent = np.array([spent_on(of_trace) for of_trace in replayed])
    drawn = np.random.default_rng(seed).integers(0, len(replayed), (_RESAMPLES, len(replayed)))
    means = tokens[drawn].sum(axis=1) / spent[drawn].sum(axis=1)
    return [round(float(bound), 4) for bound in np.percentile(means, (2.5, 97.5))]


def _ratio(above: float, below: float) -> float | None:
    return round(above / below, 4) if below else None
