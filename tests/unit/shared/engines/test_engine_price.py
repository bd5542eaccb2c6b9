"""How many drafted tokens pay: the choice against all choices, and curves learned from passes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculant_graph import CostCurve
from speculant_graph.engines.price import LearnedCost, paying_drafts
from speculant_graph.types import Draft
from support.engine_runner import KnownCost

_CURVE = CostCurve((1, 2, 4, 8, 16), (1.0, 1.3, 1.7, 2.2, 3.0))


def _chain(probabilities: list[float]) -> Draft:
    paths = np.cumprod(probabilities).tolist()
    return Draft(tuple(range(len(paths))), tuple(range(len(paths))), tuple(paths))


def _speed(drafts: list[Draft], cost: KnownCost) -> float:
    size = sum(map(len, drafts))
    return (len(drafts) + sum(sum(draft.path_probabilities) for draft in drafts)) / cost.of(len(drafts), size)[size]


@given(st.lists(st.lists(st.floats(0.05, 1.0), max_size=4), min_size=1, max_size=3))
def test_no_other_choice_of_beginnings_is_expected_to_be_faster(rows):
    drafts, cost = [_chain(row) for row in rows], KnownCost(_CURVE)
    kept = paying_drafts(drafts, cost)
    assert all(draft.token_ids == whole.token_ids[: len(draft)] for draft, whole in zip(kept, drafts, strict=True))
    choices = itertools.product(*(range(len(draft) + 1) for draft in drafts))
    best = max(
        _speed([draft.part(range(size)) for draft, size in zip(drafts, sizes, strict=True)], cost) for sizes in choices
    )
    assert _speed(kept, cost) == pytest.approx(best)


def test_trees_keep_what_is_above_a_node():
    tree = Draft((5, 6, 7, 8), (0, 0, 1, 2), (0.9, 0.05, 0.8, 0.01))
    [kept] = paying_drafts([tree], KnownCost(_CURVE))
    assert (kept.token_ids, kept.parents) == ((5, 7), (0, 1))


def test_drafts_without_probabilities_stay_whole_and_are_paid_for():
    sure, plain = _chain([0.5]), Draft((1,) * 14, tuple(range(14)))
    steep_at_first = KnownCost(CostCurve((1, 3, 16, 17), (1.0, 2.0, 2.1, 2.2)))
    assert [len(draft) for draft in paying_drafts([sure, Draft()], steep_at_first)] == [0, 0]
    assert [len(draft) for draft in paying_drafts([sure, plain], steep_at_first)] == [1, 14]


def _moe(num_rows: int, num_drafted: int) -> float:
    return 0.017 * (0.35 + 0.65 * (1 - 0.875 ** (num_rows + num_drafted)) / 0.125)


def _graphs(num_rows: int, num_drafted: int) -> float:
    return 0.010 + 0.0001 * (num_rows + num_drafted) + 0.004 * (num_drafted > 0)


@pytest.mark.parametrize("seconds", [_moe, _graphs])
@pytest.mark.parametrize("num_rows", [1, 8])
def test_what_passes_cost_is_learned_from_noisy_passes(seconds, num_rows):
    chance, cost = np.random.default_rng(7), LearnedCost()
    for number in range(8):  # while an engine warms up, anything takes long
        cost.observe(num_rows, number * num_rows, 30.0)
    for _ in range(400):
        drafted = int(chance.choice([0, 0, 1, 2, 4, 8])) * num_rows
        noise = chance.lognormal(0.0, 0.1) * (20.0 if chance.random() < 0.02 else 1.0)
        cost.observe(num_rows, drafted, seconds(num_rows, drafted) * noise)
    found = np.array(cost.of(num_rows, 8 * num_rows))
    assert (np.diff(found) >= 0.0).all()
    for drafted in (0, num_rows, 8 * num_rows):
        relative = seconds(num_rows, drafted) / seconds(num_rows, 0)
        assert found[drafted] / found[0] == pytest.approx(relative, rel=0.25)


def test_what_was_assumed_holds_until_passes_were_seen_and_in_their_unit():
    cost = LearnedCost()
    assumed = np.array(cost.of(1, 8)) / cost.of(1, 8)[0]
    for _ in range(16):
        cost.observe(1, 0, 0.02)
    found = np.array(cost.of(1, 8))
    assert found[0] == pytest.approx(0.02, rel=0.2)
    np.testing.assert_allclose(found / found[0], assumed, rtol=0.2)


def test_a_curve_that_was_wrong_is_tried_again():
    cost = LearnedCost()
    for _ in range(50):
        cost.observe(1, 8, 1.0)
        cost.observe(1, 0, 0.02)
    assert cost.of(1, 8)[8] > 10 * cost.of(1, 8)[0]
    for _ in range(1_500):
        cost.observe(1, 0, 0.02)
    assert cost.of(1, 8)[8] < 4 * cost.of(1, 8)[0]
