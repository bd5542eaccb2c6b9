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
from speculant_graph.budget import Comparison, CostCurve, NeuralChoice, num_agreeing
from speculant_graph.engines.engine_sessions import EngineSessions
from speculant_graph.types import DEFAULT_OPTIONS, DraftOptions

FEWEST, NUM_TIMES, MEMORY, USUAL_GAIN, USUAL_ROWS = 4, 16, 511 / 512, 0.03, 256
COMPARISONS = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 9), st.floats(0.1, 3.0), st.floats(0.1, 3.0), st.floats(0.0, 0.1)),
    max_size=60,
)


def slow_choice(num_rows: int, seen: list[tuple[Comparison, float]]) -> bool:
    """Return what the comparisons so far say, all sums made anew."""
    turns = [not each.manner.is_neural for each, _ in seen]
    if len(seen) < FEWEST or len(set(turns)) < 2:
        return True
    weights = MEMORY ** np.arange(len(seen))[::-1]
    gains, times = [], {True: [], False: []}
    for each, rate in seen:
        worth = [tokens - rate * seconds for tokens, seconds in zip(each.num_tokens, each.pass_s, strict=True)]
        by_manner = dict(zip((not each.manner.is_neural, each.manner.is_neural), worth, strict=True))
        gains.append(by_manner[True] - by_manner[False])
        times[not each.manner.is_neural].append(each.first_s)
    tokens = weights @ [each.num_tokens[1] for each, _ in seen] / weights.sum()
    usual = USUAL_ROWS / num_rows
    gain = (usual * USUAL_GAIN * tokens + weights @ gains) / (usual + weights.sum())
    added_s = median(times[True][-NUM_TIMES:]) - median(times[False][-NUM_TIMES:])
    return bool(gain > seen[-1][1] * added_s)


@given(made=COMPARISONS, rates=st.lists(st.floats(0.1, 5.0), min_size=1, max_size=4), num_rows=st.integers(1, 40))
def test_the_choice_is_that_of_the_slow_way(made: list[Any], rates: list[float], num_rows: int) -> None:
    choice, seen = NeuralChoice(), []
    for index, (first, verified, first_pass_s, pass_s, first_s) in enumerate(made):
        while not (manner := choice.manner(num_rows)).compares:
            assert manner.is_neural is slow_choice(num_rows, seen)
        comparison = Comparison(manner, first_s, (first, verified), (first_pass_s, pass_s))
        rate = rates[index % len(rates)]
        choice.observe(num_rows, comparison, rate)
        seen.append((comparison, rate))
    turns = [each.manner.is_neural for each, _ in seen]
    assert all(before != after for before, after in pairwise(turns))


@pytest.mark.parametrize("num_rows", [1, 8, 32])
@pytest.mark.parametrize("gain", [0.1, -0.1])
def test_what_pays_is_found_and_found_again_where_it_changes(num_rows: int, gain: float) -> None:
    """Tokens differ from step to step far more than the manners do; only their difference is of the manner."""
    chance, choice, shares = random.Random(3), NeuralChoice(), []
    for sign in (1, -1):
        used = []
        for _ in range(60_000):
            manner = choice.manner(num_rows)
            used.append(manner.is_neural)
            if not manner.compares:
                continue
            without = chance.randrange(8 * num_rows)
            better = sum(chance.random() < 0.3 for _ in range(num_rows))
            tokens = {True: without + better, False: without}
            # A second earns a token. So the time that pays is that of 0.3 tokens a row.
            seconds = {True: 1.0 + (0.3 - sign * gain) * num_rows, False: 1.0}
            order = (not manner.is_neural, manner.is_neural)
            made = Comparison(manner, seconds[order[0]], (tokens[order[0]], tokens[order[1]]), (50.0, 50.0))
            choice.observe(num_rows, made, 1.0)
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
def test_an_engine_is_given_the_drafts_made_last(has_neural: bool) -> None:
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
        assert len(both) >= 4
        assert all({options.omit_neural for options in asked} == {True, False} for asked in both)
        assert sessions.counts.neural_steps == sum(not options.omit_neural for options in verified)
    else:
        assert not both
        assert set(verified) == {DEFAULT_OPTIONS}
        assert not sessions.counts.neural_steps
    assert not sessions.counts.failed_steps
