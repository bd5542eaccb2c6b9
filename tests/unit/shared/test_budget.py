"""The draft budget: optimal choice of nodes, cost curves learned from passes, limits on loss, and the least
probability."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculant_graph._core import best_size
from speculant_graph.budget import CURVES, CostCurve, LearnedCost, StepBudget, chosen_nodes
from speculant_graph.budget.allowance import Allowance
from speculant_graph.budget.step_budget import DraftingCost
from speculant_graph.types import Draft

_CURVE = CostCurve((1, 2, 4, 8, 16), (1.0, 1.3, 1.7, 2.2, 3.0))
_RATE = 400.0


def _chain(probabilities: list[float]) -> Draft:
    paths = np.cumprod(probabilities).tolist()
    return Draft(tuple(range(len(paths))), tuple(range(len(paths))), tuple(paths))


def _value(drafts: list[Draft], rate: float) -> float:
    size = len(drafts) + sum(map(len, drafts))
    gains = sum(sum(draft.path_probabilities) for draft in drafts)
    return gains - rate * _CURVE.seconds(len(drafts), size)[size]


@given(
    st.lists(st.floats(0.0, 1.0), max_size=12), st.floats(0.1, 100.0), st.floats(0.0, 1.0), st.integers(0, 2**32)
)  # fmt: skip
def test_no_other_size_is_worth_more(gains, rate, slope, seed):
    gains = sorted(gains, reverse=True)
    seconds = np.cumsum(np.random.default_rng(seed).random(len(gains) + 1) * slope) + 0.1
    values = [sum(gains[:size]) - rate * seconds[size] for size in range(len(gains) + 1)]
    assert values[best_size(gains, seconds, rate)] == pytest.approx(max(values), abs=1e-9)


@given(st.lists(st.lists(st.floats(0.05, 1.0), max_size=4), min_size=1, max_size=3), st.floats(1.0, 2_000.0))
def test_no_other_choice_of_beginnings_is_worth_more(rows, rate):
    drafts = [_chain(row) for row in rows]
    nodes = chosen_nodes(drafts, _CURVE.seconds(len(drafts), 99), rate)
    kept = [draft.part(each) for draft, each in zip(drafts, nodes, strict=True)]
    assert all(draft.token_ids == whole.token_ids[: len(draft)] for draft, whole in zip(kept, drafts, strict=True))
    choices = itertools.product(*(range(len(draft) + 1) for draft in drafts))
    best = max(
        _value([draft.part(range(size)) for draft, size in zip(drafts, sizes, strict=True)], rate) for sizes in choices
    )
    assert _value(kept, rate) == pytest.approx(best)


def test_trees_keep_what_is_above_a_node():
    tree = Draft((5, 6, 7, 8), (0, 0, 1, 2), (0.9, 0.05, 0.8, 0.01))
    assert chosen_nodes([tree], _CURVE.seconds(1, 9), _RATE) == [[0, 2]]


def test_drafts_without_probabilities_stay_whole_and_are_paid_for():
    sure, plain = _chain([0.5]), Draft((1,) * 14, tuple(range(14)))
    steep_at_first = CostCurve((1, 3, 16, 17), (1.0, 2.0, 2.1, 2.2)).seconds(2, 99)
    assert [len(each) for each in chosen_nodes([sure, Draft()], steep_at_first, 1_100.0)] == [0, 0]
    assert [len(each) for each in chosen_nodes([sure, plain], steep_at_first, 1_100.0)] == [1, 14]


def _moe(num_rows: int, num_drafted: int) -> float:
    return 0.017 * (0.35 + 0.65 * (1 - 0.875 ** (num_rows + num_drafted)) / 0.125)


def _many_experts(num_rows: int, num_drafted: int) -> float:
    return 0.003 + 0.02 * (1 - (124 / 128) ** (num_rows + num_drafted))


def _graphs(num_rows: int, num_drafted: int) -> float:
    return 0.010 + 0.0001 * (num_rows + num_drafted) + 0.004 * (num_drafted > 0)


def _dense(num_rows: int, num_drafted: int) -> float:
    return 0.010 + 0.0004 * (num_rows + num_drafted)


@pytest.mark.parametrize("seconds", [_moe, _many_experts, _graphs, _dense])
@pytest.mark.parametrize(("num_rows", "warm_up"), [(1, 0), (1, 8), (8, 3), (8, 40)])
def test_what_passes_cost_is_learned_from_noisy_passes(seconds, num_rows, warm_up):
    chance, cost = np.random.default_rng(7), LearnedCost()
    for number in range(warm_up):  # every pass is slow while an engine warms up
        cost.observe(num_rows, (1 + number) * num_rows, 30.0)
    for _ in range(600):
        drafted = int(chance.choice([0, 0, 1, 2, 4, 8])) * num_rows
        noise = chance.lognormal(0.0, 0.1) * (20.0 if chance.random() < 0.02 else 1.0)
        cost.observe(num_rows, num_rows + drafted, seconds(num_rows, drafted) * noise)
    found = cost.seconds(num_rows, 9 * num_rows)[num_rows:]
    assert (np.diff(found) >= 0.0).all()
    for drafted in (0, num_rows, 8 * num_rows):
        relative = seconds(num_rows, drafted) / seconds(num_rows, 0)
        assert found[drafted] / found[0] == pytest.approx(relative, rel=0.25)


def test_what_was_assumed_holds_until_passes_were_seen_and_in_their_unit():
    cost = LearnedCost()
    assumed = cost.seconds(1, 9)[1:] / cost.seconds(1, 1)[1]
    for _ in range(16):
        cost.observe(1, 1, 0.02)
    found = cost.seconds(1, 9)[1:]
    assert found[0] == pytest.approx(0.02, rel=0.2)
    np.testing.assert_allclose(found / found[0], assumed, rtol=0.2)


def test_a_curve_that_was_wrong_is_tried_again():
    cost = LearnedCost()
    for _ in range(200):
        cost.observe(1, 9, 1.0)
        cost.observe(1, 1, 0.02)
    assert cost.seconds(1, 9)[9] > 8 * cost.seconds(1, 1)[1]
    for _ in range(1_500):
        cost.observe(1, 1, 0.02)
    assert cost.seconds(1, 9)[9] < 4 * cost.seconds(1, 1)[1]


@pytest.mark.parametrize(("loss", "share"), [(0.02, 0.012), (0.2, 0.02), (2.0, 0.03)])
def test_what_always_loses_loses_a_small_share(loss, share):
    allowance, lost = Allowance(4.0), 0.0
    for _ in range(2_000):
        if allowance.allows():
            allowance.add(-loss)
            lost += loss
        allowance.add_pass(1.0)
    assert 0.0 < lost / 2_000 < share


@given(losses=st.lists(st.floats(0.0, 3.0), min_size=1, max_size=20))
def test_rests_last_as_long_as_told(losses: list[float]) -> None:
    allowance = Allowance(2.0)
    allowance.add_pass(1.0)
    for loss in losses:
        while allowance.allows():
            assert allowance.num_rest() == 0
            allowance.add(-loss - 0.01)
        num_rest = allowance.num_rest()
        assert num_rest > 0
        for _ in range(num_rest - 1):  # sums are rounded, so one pass more or less
            assert not allowance.allows()
            allowance.add_pass(1.0)
        allowance.add_pass(1.0)
        allowance.add_pass(1.0)
        assert allowance.allows()


def test_what_gains_is_not_ended_by_bad_luck():
    chance, allowance = np.random.default_rng(5), Allowance(4.0)
    num_allowed = 0
    for _ in range(5_000):
        if allowance.allows():
            num_allowed += 1
            allowance.add(chance.normal(0.12, 0.6))
        allowance.add_pass(1.0)
    assert num_allowed > 4_800


def _speed(budget: StepBudget, chance: np.random.Generator, num_steps: int, *, has_bound: bool) -> float:
    """Decode one row with calibrated drafts; return the expected tokens per second."""
    tokens = seconds = 0.0
    for _ in range(num_steps):
        prices = budget.prices(1, 8)
        probabilities = np.cumprod(chance.uniform(0.2, 1.0, 8))
        bound = prices.least_probability if has_bound else 0.0
        draft = _chain((probabilities / np.array([1.0, *probabilities[:-1]])).tolist())
        draft = draft.part(range(int((np.array(draft.path_probabilities) >= bound).sum())))
        nodes = [*chosen_nodes([draft], prices.seconds, prices.rate)[0]]
        accepted = int((chance.random() < np.array(draft.path_probabilities))[: len(nodes)].sum())
        pass_s = float(prices.seconds[1 + len(nodes)])
        budget.observe(1, 1 + len(nodes), 1 + accepted, pass_s, 0.0, len(draft))
        tokens += 1.0 + sum(draft.path_probabilities[node] for node in nodes)
        seconds += pass_s
    return tokens / seconds


@pytest.mark.parametrize("num_calls", [20, 200])
@pytest.mark.parametrize("first_s", [2e-6, 3e-4, 3e-3])
@pytest.mark.parametrize("pass_s", [3e-3, 25e-3])
def test_calls_without_a_model_do_not_turn_drafts_off(num_calls: int, first_s: float, pass_s: float) -> None:
    """A program tries the drafts, or an engine warms up. Then every draft is right."""
    budget = StepBudget(LearnedCost(), is_cost_known=False)

    def step(seconds: float, num_right: int) -> bool:
        if budget.may_draft():
            budget.observe(1, 9, 1 + num_right, seconds, 1e-4, 8)
            return True
        budget.observe_plain(1, seconds)
        return False

    for _ in range(num_calls):
        step(first_s, 0)
    drafted = [step(pass_s, 8) for _ in range(400)]
    assert all(drafted[250:])


@pytest.mark.parametrize("curve", list(CURVES))
@pytest.mark.parametrize("num_rows", [1, 8, 64])
def test_an_engine_that_begins_loses_few_passes_to_drafts_that_say_too_much(curve, num_rows):
    """No pass has been timed, and drafts of 8 nodes claim high probabilities, but only one in ten is right."""
    most, budget = 8 * num_rows, StepBudget(LearnedCost(), is_cost_known=False)
    seconds = CURVES[curve].seconds(num_rows, num_rows + most)
    lost, chance = 0.0, np.random.default_rng(5)
    draft = _chain([0.3, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9])
    for _ in range(400):
        if not budget.may_draft():
            budget.observe_plain(num_rows, float(seconds[num_rows]))
            continue
        prices = budget.prices(num_rows, most)
        kept = sum(map(len, chosen_nodes([draft] * num_rows, prices.seconds, prices.rate)))
        num_new = num_rows + int((chance.random(num_rows) < 0.1).sum()) * (kept > 0)
        pass_s = float(seconds[num_rows + kept])
        budget.observe(num_rows, num_rows + kept, num_new, pass_s, 1e-6, 8 * num_rows)
        lost += pass_s / float(seconds[num_rows]) - num_new / num_rows
    assert lost < 20.0, "5 % of 400 passes, most of them at the very beginning"


@pytest.mark.parametrize("curve", ["gptoss-h100", "gptoss-spark", "dense", "cpu-moe"])
def test_the_least_probability_leaves_out_nothing_that_pays(curve):
    with_bound, without = (
        _speed(StepBudget(CURVES[curve]), np.random.default_rng(3), 600, has_bound=has_bound)
        for has_bound in (True, False)
    )
    assert with_bound > 0.99 * without
    assert StepBudget(CURVES[curve]).prices(1, 8).least_probability == 0.0, "nothing is known at first"


def test_what_a_node_more_takes_is_learned():
    found = []
    for seed in range(8):
        chance, cost = np.random.default_rng(seed), DraftingCost()
        for _ in range(20):
            nodes = chance.integers(0, 9, 16).astype(float)
            noise, other_work = chance.lognormal(0.0, 0.02, 16), 0.01 * (chance.random(16) < 0.01)
            cost.observe(nodes, (1e-4 + 5e-6 * nodes) * noise + other_work)
        found.append(cost.node_s)
    assert np.mean(found) == pytest.approx(5e-6, rel=0.4)


@given(
    st.lists(st.tuples(st.integers(0, 256), st.floats(1e-6, 1.0)), min_size=1, max_size=12),
    st.lists(st.tuples(st.integers(240, 256), st.floats(1e-6, 1.0)), max_size=12),
)
def test_a_node_takes_no_more_than_all_of_the_drafting_divided_by_the_nodes(first, similar):
    cost = DraftingCost()
    for steps in filter(None, (first, similar)):
        nodes, seconds = np.array(steps).T
        cost.observe(nodes, seconds)
        total = sum(nodes for nodes, _ in first)
        assert cost.node_s >= 0.0
        if not similar and total:
            usual = sorted(seconds)[len(seconds) // 2]
            weights = 0.98 ** np.arange(len(first))[::-1]
            assert cost.node_s <= weights @ np.minimum(seconds, 4.0 * usual) / (weights @ nodes) * (1.0 + 1e-9)


def test_equal_nodes_tell_no_price_of_a_node_and_stop_no_drafts():
    """Noise once made a node of 256 cost 171 µs, so that nothing was drafted for 24 steps."""
    budget = StepBudget(CURVES["gptoss-h100"])
    for step in range(12):
        nodes, draft_s = (256, 1.5e-3) if step % 2 else (248, 0.8e-3)
        budget.observe(32, 64, 56, 7e-3, draft_s, nodes)
    assert budget.prices(32, 256).least_probability < 0.2


def test_turns_end_where_no_pass_is_a_measure():
    budget = StepBudget(LearnedCost(), is_cost_known=False)
    assert [budget.may_draft() for _ in range(4)] == [True, False, True, False]
    assert all([budget.may_draft() for _ in range(200)][100:])
