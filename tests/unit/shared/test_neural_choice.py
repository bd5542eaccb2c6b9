"""Whether drafts ask the neural model: the choice against the slow way, and what engines do by it."""

from __future__ import annotations

import random
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculant_graph._core import RowDrafts
from speculant_graph.budget import Comparison, CostCurve, NeuralChoice, neural_choice, num_agreeing
from speculant_graph.engines.engine_sessions import EngineSessions
from speculant_graph.types import DEFAULT_OPTIONS, DraftOptions

TRIED, NUM_TIMES, MOST_ROWS, USUAL_GAIN, USUAL_ROWS = 16, 16, 4_096, 0.03, 1_024
SECONDS = st.floats(0.1, 3.0)
DRAFTS = st.floats(0.0, 0.1)
STEPS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), SECONDS, SECONDS, DRAFTS, SECONDS), max_size=120)


class SlowChoice:
    """All that was seen, in lists; sums are made anew every time."""

    def __init__(self) -> None:
        self.times: dict[bool, list[float]] = {True: [], False: []}
        self.passes: list[float] = []
        self.saved: list[float] = []
        self.is_neural, self.is_decided = True, False

    def decide(self, num_rows: int) -> None:
        weights = (1.0 - num_rows / MOST_ROWS) ** np.arange(len(self.saved))[::-1]
        usual = USUAL_ROWS / num_rows
        saved_s = usual * USUAL_GAIN * median(self.passes[-NUM_TIMES:]) + weights @ np.array(self.saved)
        added_s = median(self.times[True][-NUM_TIMES:]) - median(self.times[False][-NUM_TIMES:])
        self.is_neural, self.is_decided = bool(saved_s / (usual + weights.sum()) > added_s), True


@given(steps=STEPS, rate=st.floats(0.1, 5.0), num_rows=st.integers(1, 40))
def test_the_choice_is_that_of_the_slow_way(steps: list[Any], rate: float, num_rows: int) -> None:
    choice, slow, turns = NeuralChoice(), SlowChoice(), []
    for first, verified, first_pass_s, pass_s, draft_s, real_s in steps:
        manner = choice.manner(num_rows)
        if manner.compares:
            turns.append(manner.is_neural)
            choice.compare(num_rows, Comparison(manner, draft_s, (first, verified), (first_pass_s, pass_s)), rate)
            worth = [tokens / rate - each for tokens, each in ((first, first_pass_s), (verified, pass_s))]
            slow.saved.append((worth[1] - worth[0]) * (1 if manner.is_neural else -1))
            slow.times[not manner.is_neural].append(draft_s)
            slow.decide(num_rows)
            continue
        assert manner.is_neural is (slow.is_neural if slow.is_decided else len(slow.passes) % 2 == 1)
        choice.observe(num_rows, manner.is_neural, draft_s, real_s)
        slow.passes.append(real_s)
        if not slow.is_decided:
            slow.times[manner.is_neural].append(draft_s)
        if len(slow.passes) == TRIED:
            slow.decide(num_rows)
    assert all(before != after for before, after in pairwise(turns))


@pytest.mark.parametrize("num_rows", [1, 8, 32])
@pytest.mark.parametrize("gain", [0.1, -0.1])
def test_what_pays_is_found_and_found_again_where_it_changes(
    num_rows: int, gain: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens differ from step to step far more than the manners do; only their difference is of the manner."""
    monkeypatch.setattr(neural_choice, "_SHARE", 1.0)  # sooner
    chance, choice, shares = random.Random(3), NeuralChoice(), []
    for sign in (1, -1):
        used = []
        for _ in range(60_000):
            manner = choice.manner(num_rows)
            used.append(manner.is_neural)
            # A second earns a token, and the model takes as much time as it usually saves.
            seconds = {True: 1.0 + 0.3 * num_rows, False: 1.0}
            if not manner.compares:
                choice.observe(num_rows, manner.is_neural, seconds[manner.is_neural], 10.0 * num_rows)
                continue
            without = chance.randrange(8 * num_rows)
            better = sum(chance.random() < 0.3 + sign * gain for _ in range(num_rows))
            tokens = {True: without + better, False: without}
            order = (not manner.is_neural, manner.is_neural)
            made = Comparison(manner, seconds[order[0]], (tokens[order[0]], tokens[order[1]]), (7.0, 7.0))
            choice.compare(num_rows, made, 1.0)
        shares.append(sum(used[-20_000:]) / 20_000)
    assert [share > 0.9 for share in shares] == [gain > 0, gain < 0]
    assert all(share > 0.9 or share < 0.1 for share in shares)


@given(draft=st.lists(st.integers(0, 2), max_size=5), written=st.lists(st.integers(0, 2), max_size=5))
def test_a_chain_brings_what_it_agrees_with_and_one_token_more(draft: list[int], written: list[int]) -> None:
    agreeing = [n for n in range(min(len(draft), len(written)) + 1) if draft[:n] == written[:n]]
    assert num_agreeing(draft, np.array(written, np.int32)) == max(agreeing) + 1


class Rows:
    """Drafts one right token with the model, and none without; notes how it was asked."""

    state = "ok"

    def __init__(self) -> None:
        self.asked: list[list[DraftOptions]] = []

    def open(self, session_id: int, options: object = None) -> None: ...

    def draft_rows(self, batch: Any, budgets: list[int], prices: object, options: DraftOptions) -> RowDrafts:
        self.asked[-1].append(options)
        rows = len(budgets)
        tokens = [] if options.omit_neural else [(int(text[-1]) + 1) % 100 for text in batch.texts]
        return RowDrafts([len(tokens) // rows] * rows, tokens, [0] * len(tokens), [0.9] * len(tokens), len(tokens))

    def finish(self, session_id: int) -> None: ...
    def close(self) -> None: ...


@pytest.mark.parametrize("has_neural", [True, False])
def test_an_engine_is_given_the_drafts_made_last(has_neural: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neural_choice, "_SHARE", 1e3)  # these passes are shorter than their drafts
    rows = Rows()
    sessions = EngineSessions(
        rows, most_drafted=4, vocabulary_size=100, cost=CostCurve((1,), (1e-3,)), has_neural=has_neural
    )
    assert sessions._budget is not None
    sessions._budget.may_draft = lambda: True  # type: ignore[method-assign]  # the passes are too short to pay
    texts = [list(range(start, start + 5)) for start in (0, 50)]
    for _ in range(200):
        rows.asked.append([])
        drafts = sessions.draft([np.array(text, np.int32) for text in texts], [4, 4]).lists()
        assert rows.asked[-1]
        assert drafts == [[] if rows.asked[-1][-1].omit_neural else [(text[-1] + 1) % 100] for text in texts]
        for text, draft in zip(texts, drafts, strict=True):
            text += [(text[-1] + 1 + place) % 100 for place in range(len(draft) + 1)]
    both = [asked for asked in rows.asked if len(asked) == 2]
    verified = [asked[-1] for asked in rows.asked]
    assert sessions.counts.drafted_steps == len(rows.asked)
    if has_neural:
        assert len(both) > 8
        assert all({options.omit_neural for options in asked} == {True, False} for asked in both)
        assert sessions.counts.neural_steps == sum(not options.omit_neural for options in verified)
    else:
        assert not both
        assert set(verified) == {DEFAULT_OPTIONS}
        assert not sessions.counts.neural_steps
    assert not sessions.counts.failed_steps
