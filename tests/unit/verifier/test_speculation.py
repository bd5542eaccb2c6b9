"""Draft lengths: nothing if drafts never pay, everything if they always do, and a change is noticed."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculant_graph.budget import CURVES, RowCurve, StepBudget
from speculant_graph.types import Draft
from speculant_verifier.speculation.controller import AcceptanceHistory, DraftLengthController


def by_width(name):
    return RowCurve(CURVES[name])


def play(name, accuracy, steps, *, has_predictions, claimed=0.99, rows=1, most=8, seed=0):
    """Decode with chains of a given accuracy per node; return the tokens, and the cost in plain passes."""
    generator = random.Random(seed)
    budget = StepBudget(by_width(name))
    speculation = DraftLengthController(budget, has_predictions=has_predictions)
    histories = [speculation.new_history() for _ in range(rows)]
    tokens = cost = 0.0
    for step in range(steps):
        budgets = speculation.budgets(histories, [most] * rows)
        drafts = [
            Draft(
                tuple(range(budget)),
                tuple(range(budget)),
                tuple(claimed**depth for depth in range(1, budget + 1)) if has_predictions else (),
            )
            for budget in budgets
        ]
        kept = speculation.keep(histories, drafts, [True] * rows)
        drafts = [draft.part(nodes) for draft, nodes in zip(drafts, kept, strict=True)]
        cost += CURVES[name].relative(1 + max(map(len, drafts)))
        right, before = accuracy(step) if callable(accuracy) else accuracy, tokens
        for history, draft in zip(histories, drafts, strict=True):
            accepted = 0
            while accepted < len(draft) and generator.random() < right:
                accepted += 1
            tokens += 1 + accepted
            if len(draft):
                depths = range(1, len(draft) + 1)
                speculation.observe(history, depths, accepted, sum(draft.path_probabilities))
        width = 1 + max(map(len, drafts))
        if width > 1:
            budget.observe(rows, rows * width, int(tokens - before), 1.0, 0.0, sum(map(len, drafts)))
    return tokens / rows, cost


@pytest.mark.parametrize("has_predictions", [False, True])
@pytest.mark.parametrize("name", ["dense", "cpu-moe", "moe"])
def test_drafts_that_are_never_right_cost_next_to_nothing(name, has_predictions):
    tokens, cost = play(name, 0.0, 400, has_predictions=has_predictions)
    assert tokens == 400
    assert cost <= 400 * 1.03


@pytest.mark.parametrize("has_predictions", [False, True])
@pytest.mark.parametrize("rows", [1, 8])
def test_drafts_that_are_always_right_are_used_in_full(has_predictions, rows):
    tokens, cost = play("cpu-moe", 1.0, 60, has_predictions=has_predictions, rows=rows)
    assert tokens >= 60 * 8
    assert tokens / cost > 0.93 * 9 / CURVES["cpu-moe"].relative(9)


@pytest.mark.parametrize("accuracy", [0.3, 0.5, 0.7, 0.9])
@pytest.mark.parametrize("name", ["dense", "cpu-moe"])
def test_the_width_is_nearly_as_good_as_the_best_fixed_one(name, accuracy):
    tokens, cost = play(name, accuracy, 2_000, has_predictions=False)
    best = max(
        (1 + sum(accuracy**depth for depth in range(1, nodes + 1))) / CURVES[name].relative(nodes + 1)
        for nodes in range(9)
    )
    assert tokens / cost >= 0.92 * best


def test_text_that_becomes_predictable_is_noticed():
    """300 unpredictable tokens, then 300 steps in which every draft token is right."""
    tokens, cost = play("cpu-moe", lambda step: float(step >= 300), 600, has_predictions=False)
    assert tokens > 300 + 0.5 * 300 * 9
    assert cost < 300 * 1.05 + 300 * CURVES["cpu-moe"].relative(9)


@given(st.lists(st.tuples(st.integers(1, 10), st.integers(0, 10), st.floats(0, 10)), max_size=60))
def test_expectations_are_probabilities_and_never_rise_with_depth(drafts):
    history = AcceptanceHistory()
    for depth, accepted, predicted in drafts:
        history.observe(range(1, depth + 1), min(accepted, depth), predicted)
    expected = AcceptanceHistory(history).by_depth()
    assert ((expected >= 0) & (expected <= 1)).all()
    assert (np.diff(expected) <= 1e-12).all()
    assert 0 <= history.calibration <= 1


@pytest.mark.parametrize("has_predictions", [False, True])
def test_slow_drafts_are_asked_for_rarely_if_times_are_known(has_predictions):
    def asked(draft_s, *, is_measured):
        budget = StepBudget(by_width("dense"))
        speculation = DraftLengthController(budget, has_predictions=has_predictions, is_measured=is_measured)
        histories = [speculation.new_history() for _ in range(4)]
        count = 0
        for _ in range(300):
            budgets = speculation.budgets(histories, [4] * 4)
            if not any(budgets):
                budget.observe_plain(4, 0.010)
                continue
            count += 1
            for history in histories:
                speculation.observe(history, range(1, 5), 2, 2.0)
            budget.observe(4, 20, 12 if draft_s < 0.01 else 4, 0.010, draft_s, 16)
        return count

    assert asked(0.0005, is_measured=True) == asked(0.1, is_measured=False) == 300
    assert asked(0.1, is_measured=True) < 80
    # A row with speculation "on" gets drafts at any cost.
    budget = StepBudget(by_width("dense"))
    speculation = DraftLengthController(budget, has_predictions=has_predictions, is_measured=True)
    for _ in range(40):
        assert speculation.budgets([None, speculation.new_history()], [3, 3])[0] == 3
        budget.observe(2, 8, 2, 0.010, 1.0, 6)
