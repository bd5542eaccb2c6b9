"""The choice whether drafts use the neural model, compared with a slow version, and its use by engines."""

from __future__ import annotations

import random
from statistics import median
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speculant_graph._core import RowDrafts
from speculant_graph.budget import CostCurve, NeuralChoice
from speculant_graph.engines.engine_sessions import EngineSessions
from speculant_graph.types import DEFAULT_OPTIONS, DraftOptions

TRIED, NUM_TIMES, USUAL_GAIN = 4, 16, 0.03


class SlowChoice:
    """Keeps all steps, and computes everything from them anew at every step."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, bool, float, float]] = []
        """Of each ended step: its number, whether it used the model, and its times."""
        self.num_begun = 0
        self.decisions: list[bool] = []
        self.measurements: list[int] = []
        """First steps of the pairs with the opposite choice, the next one included."""
        self.timed: set[int] = set()
        """Numbers of the steps whose drafting time counts."""

    def next_manner(self) -> bool:
        self.num_begun += 1
        number = self.num_begun
        if not self.decisions:
            self.timed |= {number} if number % 2 == 0 else set()
            return (number - 1) // 2 % 2 == 1
        if number == self.measurements[-1] + 2:
            self.measurements.append(self.measurements[-1] + self.gap())
        self.timed |= {number} if {number - 1, number + 1} & {self.measurements[-1]} else set()
        return self.decisions[-1] != (number - self.measurements[-1] in (0, 1))

    def times(self, manner: bool) -> list[float]:
        return [draft_s for number, is_neural, draft_s, _ in self.steps if is_neural is manner and number in self.timed]

    def saved_share(self) -> float:
        """Return the share of a pass that the model saves, which includes its cost; by the latest timed steps."""
        last = max(place for place, (number, *_) in enumerate(self.steps) if number in self.timed)
        usual_s = median([pass_s for *_, pass_s in self.steps[: last + 1]][-NUM_TIMES:])
        added_s = median(self.times(True)[-NUM_TIMES:]) - median(self.times(False)[-NUM_TIMES:])
        return USUAL_GAIN - added_s / usual_s

    def gap(self) -> int:
        """Return the gap with which two steps of the slower choice lose 0.2 % of the time, from 64 to 256 steps."""
        return min(256, max(64, int(2 * abs(self.saved_share()) / 0.002)))

    def end(self, is_neural: bool, draft_s: float, pass_s: float) -> None:
        self.steps.append((self.num_begun, is_neural, draft_s, pass_s))
        num_tried = min(len(self.times(True)), len(self.times(False)))
        if self.num_begun not in self.timed or not num_tried:
            return
        is_clear = num_tried >= TRIED or self.saved_share() <= -0.1
        decision = self.saved_share() > 0
        if (is_clear and not self.decisions) or (self.decisions and decision != self.decisions[-1]):
            self.measurements.append(self.num_begun + self.gap())
            self.decisions.append(decision)


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32), num_rows=st.integers(1, 40))
def test_the_choice_is_that_of_the_slow_way(seed: int, num_rows: int) -> None:
    """Some steps have no known time, because the batch changed. The model's cost changes now and then."""
    chance, choice, slow = random.Random(seed), NeuralChoice(), SlowChoice()
    share_of_known, cost = chance.choice([0.5, 0.95, 1.0]), chance.uniform(0.0, 0.5)
    for _ in range(1_000):
        is_neural = choice.is_neural(num_rows)
        assert is_neural is slow.next_manner()
        cost = cost if chance.random() < 0.997 else chance.uniform(0.0, 0.5)
        if chance.random() < share_of_known:
            draft_s, pass_s = chance.uniform(0.0, 0.02) + cost * is_neural, chance.uniform(0.5, 1.5)
            choice.observe(num_rows, is_neural, draft_s, pass_s)
            slow.end(is_neural, draft_s, pass_s)


@pytest.mark.parametrize("share_of_next", [0.0, 0.8])
@pytest.mark.parametrize("num_rows", [1, 8, 32])
def test_what_pays_is_found_and_found_again_where_it_changes(num_rows: int, share_of_next: float) -> None:
    """The choice is right even if one step in ten takes ten times as long, or the next step has most of the cost."""
    chance, choice, shares = random.Random(3), NeuralChoice(), []
    for share_of_pass in (0.01, 0.05, 0.02):
        used = []
        for _ in range(6_000):
            used.append(choice.is_neural(num_rows))
            cost = (1 - share_of_next) * used[-1] + share_of_next * used[max(len(used) - 2, 0)]
            draft_s = (0.1 + share_of_pass * cost) * chance.choice([1, 1, 1, 1, 1, 1, 1, 1, 1, 10])
            choice.observe(num_rows, used[-1], draft_s, 1.0)
        shares.append(sum(used[-3_000:]) / 3_000)
    assert [share > 0.95 for share in shares] == [True, False, True]
    assert shares[1] < 0.05


class Rows:
    """Drafts one right token with the neural model and none without it; records the options."""

    state = "ok"

    def __init__(self) -> None:
        self.asked: list[DraftOptions] = []

    def open(self, session_id: int, options: object = None) -> None: ...

    def draft_rows(self, batch: Any, budgets: list[int], prices: object, options: DraftOptions) -> RowDrafts:
        self.asked.append(options)
        rows = len(budgets)
        tokens = [] if options.omit_neural else [(int(text[-1]) + 1) % 100 for text in batch.texts]
        return RowDrafts([len(tokens) // rows] * rows, tokens, [0] * len(tokens), [0.9] * len(tokens), len(tokens))

    def finish(self, session_id: int) -> None: ...
    def close(self) -> None: ...


@pytest.mark.parametrize("has_neural", [True, False])
@pytest.mark.parametrize("cost", [CostCurve((1,), (1e-3,)), None])
def test_an_engine_drafts_as_chosen_and_counts(has_neural: bool, cost: CostCurve | None) -> None:
    """This holds for priced passes and for passes of a fixed width."""
    rows = Rows()
    sessions = EngineSessions(rows, most_drafted=4, vocabulary_size=100, cost=cost, has_neural=has_neural)
    if sessions._budget is not None:
        sessions._budget.may_draft = lambda: True  # type: ignore[method-assign]  # the passes are too short to pay
    text = list(range(5))
    for _ in range(300):
        (draft,) = sessions.draft([np.array(text, np.int32)], [4]).lists()
        assert len(draft) == (not rows.asked[-1].omit_neural)
        text += [(text[-1] + 1 + place) % 100 for place in range(len(draft) + 1)]
    assert len(rows.asked) == sessions.counts.drafted_steps == 300
    num_neural = sum(not options.omit_neural for options in rows.asked)
    if has_neural:
        assert [options.omit_neural for options in rows.asked[:4]] == [True, True, False, False]
        assert sessions.counts.neural_steps == num_neural
        assert 4 <= num_neural < 296, "each manner is timed again and again"
    else:
        assert set(rows.asked) == {DEFAULT_OPTIONS}
        assert not sessions.counts.neural_steps
    assert not sessions.counts.failed_steps
