"""The figures of a replay, from its steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from speculant_graph.bench.replay_loop import ReplayStep

if TYPE_CHECKING:
    from speculant_graph.draft.cost import CostCurve

_RESAMPLES = 1_000
_BINS = 10


def replay_figures(replayed: Sequence[Sequence[ReplayStep]], cost: CostCurve | None, seed: int) -> dict[str, object]:
    """Return the figures of one run, ready for JSON.

    Args:
        replayed: the steps of every trace, at least one each.
        cost: prices the drafts; without it ``relative_speed`` and its interval are None.
        seed: seed of the interval's resampling.
    """
    steps = [step for of_trace in replayed for step in of_trace]
    num_tokens = sum(step.num_tokens for step in steps)
    num_drafted = sum(len(step.parents) for step in steps)
    num_accepted = sum(len(step.path) for step in steps)
    draft_us = np.array([step.draft_ns for step in steps]) / 1e3
    return {
        "traces": len(replayed),
        "output_tokens": num_tokens,
        "steps": len(steps),
        "mean_accepted_tokens": round(num_tokens / len(steps), 4),
        "mean_accepted_tokens_interval": _interval(replayed, len, seed),
        "drafted": num_drafted,
        "accepted": num_accepted,
        "acceptance_rate": _ratio(num_accepted, num_drafted),
        "drafted_per_step": round(num_drafted / len(steps), 4),
        "empty_rate": round(sum(1 for step in steps if not step.parents) / len(steps), 4),
        "expected_over_actual": _expected_over_actual(steps, num_accepted),
        "draft_us_p50": round(float(np.percentile(draft_us, 50)), 2),
        "draft_us_p99": round(float(np.percentile(draft_us, 99)), 2),
        "learn_us_per_token": round(sum(step.accept_ns for step in steps) / 1e3 / num_tokens, 3),
        "relative_speed": None if cost is None else round(num_tokens / _spent(steps, cost), 4),
        "relative_speed_interval": (
            None if cost is None else _interval(replayed, lambda of_trace: _spent(of_trace, cost), seed)
        ),
        "acceptance_by_depth": acceptance_by_depth(steps),
        "reliability": reliability(steps),
    }


def acceptance_by_depth(steps: Sequence[ReplayStep]) -> list[dict[str, object]]:
    """Return, for every depth that was drafted, how far the steps came.

    Returns:
        Objects with ``depth`` from 1 on; ``share_of_steps`` that accepted at least so many tokens; ``offered``, the
        nodes drafted there; ``accepted_of_offered``, the share of these that were accepted.
    """
    offered: Counter[int] = Counter()
    for step in steps:
        offered.update(_depths(step.parents))
    reached = Counter(len(step.path) for step in steps)
    # Steps that accepted at least d tokens: a sum from the deep end.
    at_least = list(accumulate(reached[depth] for depth in range(max(offered, default=0), 0, -1)))[::-1]
    return [
        {
            "depth": depth,
            "share_of_steps": round(num_accepted / len(steps), 4),
            "offered": offered[depth],
            "accepted_of_offered": round(num_accepted / offered[depth], 4),
        }
        for depth, num_accepted in enumerate(at_least, start=1)
    ]


def reliability(steps: Sequence[ReplayStep]) -> list[dict[str, object]]:
    """Hold the probabilities of nodes against what happened, where that is known.

    A node is judged if its parent was accepted and the record does not end before it. Its probability is that of its
    path divided by its parent's.

    Returns:
        One object for each tenth of the probabilities that has nodes: ``from``, ``to``, ``nodes``, ``predicted``
        (mean probability) and ``actual`` (share accepted). Empty if the strategy has no probabilities.
    """
    judged = np.array([pair for step in steps for pair in _judged(step)]).reshape(-1, 2)
    bins = np.clip((judged[:, 0] * _BINS).astype(np.int64), 0, _BINS - 1)
    rows: list[dict[str, object]] = []
    for number in range(_BINS):
        members = judged[bins == number]
        if len(members):
            predicted, actual = members.mean(axis=0)
            rows.append(
                {
                    "from": number / _BINS,
                    "to": (number + 1) / _BINS,
                    "nodes": len(members),
                    "predicted": round(float(predicted), 4),
                    "actual": round(float(actual), 4),
                }
            )
    return rows


def _judged(step: ReplayStep) -> Iterator[tuple[float, bool]]:
    if not step.path_probabilities:
        return
    # Numbers of parents that were accepted -> depth of their children.
    depths = {0: 1} | {node + 1: depth for depth, node in enumerate(step.path, start=2)}
    for node, parent in enumerate(step.parents):
        if depths.get(parent, step.num_left + 1) <= step.num_left:
            reached = step.path_probabilities[parent - 1] if parent else 1.0
            yield (step.path_probabilities[node] / reached if reached else 0.0), node in step.path


def _depths(parents: Sequence[int]) -> list[int]:
    depths: list[int] = []
    for parent in parents:
        depths.append(depths[parent - 1] + 1 if parent else 1)
    return depths


def _expected_over_actual(steps: Sequence[ReplayStep], num_accepted: int) -> float | None:
    if not any(step.path_probabilities for step in steps):
        return None
    return _ratio(sum(sum(step.path_probabilities) for step in steps), num_accepted)


def _spent(steps: Sequence[ReplayStep], cost: CostCurve) -> float:
    """Return the cost of steps, in steps of plain decoding."""
    drafted = Counter(len(step.parents) for step in steps)
    return sum(times * cost.at(1 + number) for number, times in drafted.items())


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
