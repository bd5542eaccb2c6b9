"""The choice whether drafts use the neural model, compared with a slow version, and its use by engines."""

from __future__ import annotations

import random
from statistics import median
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculant_graph._core import RowDrafts
from speculant_graph.budget import CostCurve, NeuralChoice
from speculant_graph.engines.engine_sessions import EngineSessions
from speculant_graph.types import DEFAULT_OPTIONS, DraftOptions

TRIED, EVERY, NUM_TIMES, USUAL_GAIN = 4, 64, 16, 0.03
TIMED = (EVERY - 3, EVERY - 1)
TIMES = st.lists(st.tuples(st.floats(0.0, 0.1), st.floats(0.1, 3.0), st.booleans()), max_size=200)


class SlowChoice:
    """Keeps all steps in a list, and computes the choice from it every time."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, bool, float, float]] = []
        self.num_begun, self.decided_at = 0, 0
        """Number of begun steps, and the number of ended steps at the first choice (0 before it)."""

    def next_manner(self) -> bool:
        self.num_begun += 1
        if not self.decided_at:
            return (self.num_begun - 1) // 2 % 2 == 1
        return self.usual() != (self.num_begun % EVERY >= EVERY - 2)

    def end(self, is_neural: bool, draft_s: float, pass_s: float) -> None:
        self.steps.append((self.num_begun, is_neural, draft_s, pass_s))
        if not self.decided_at and min(map(len, self.times().values())) >= TRIED:
            self.decided_at = len(self.steps)

    def times(self) -> dict[bool, list[float]]:
        found: dict[bool, list[float]] = {True: [], False: []}
        for place, (number, is_neural, draft_s, _) in enumerate(self.steps):
            is_early = not self.decided_at or place < self.decided_at
            if number % 2 == 0 if is_early else number % EVERY in TIMED:
                found[is_neural].append(draft_s)
        return found

    def usual(self) -> bool:
        times = self.times()
        added_s = median(times[True][-NUM_TIMES:]) - median(times[False][-NUM_TIMES:])
        counted = [place for place, (number, *_) in enumerate(self.steps) if number % EVERY in TIMED]
        last = max([self.decided_at - 1, *(place for place in counted if place >= self.decided_at)])
        passes = [pass_s for *_, pass_s in self.steps[: last + 1]]
        return added_s < USUAL_GAIN * median(passes[-NUM_TIMES:])


@given(steps=TIMES, num_rows=st.integers(1, 40))
def test_the_choice_is_that_of_the_slow_way(steps: list[Any], num_rows: int) -> None:
    """Some steps have no known time, because the batch changed."""
    choice, slow = NeuralChoice(), SlowChoice()
    for draft_s, pass_s, is_known in steps:
        is_neural = choice.is_neural(num_rows)
        assert is_neural is slow.next_manner()
        if is_known:
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
        assert [options.omit_neural for options in rows.asked[:8]] == [True, True, False, False] * 2
        assert sessions.counts.neural_steps == num_neural
        assert 4 <= num_neural < 296, "each manner is timed again and again"
    else:
        assert set(rows.asked) == {DEFAULT_OPTIONS}
        assert not sessions.counts.neural_steps
    assert not sessions.counts.failed_steps
