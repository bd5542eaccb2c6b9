"""An engine's rows as sessions: whoever moves, comes back or stands beside an equal prompt is drafted from its text."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from speculant_graph import CostCurve, DraftConfig, LocalDrafter
from speculant_graph.engines.price import LearnedCost
from speculant_graph.engines.sessions import EngineRow, EngineSessions, SequenceTracker
from support.engine_runner import EngineRunner, KnownCost, Request, WatchedDrafter
from support.graphs import graph_of

_VOCABULARY = 40
_PHRASES = [list(range(start, start + 5)) for start in (5, 20, 30)]


def _text(chooser: random.Random, length: int) -> list[int]:
    """A text of few phrases, so that beginnings and ends are often alike."""
    text: list[int] = []
    while len(text) < length:
        text += chooser.choice(_PHRASES) if chooser.random() < 0.9 else [chooser.randrange(_VOCABULARY)]
    return text[:length]


def _requests(number: int, seed: int) -> list[Request]:
    chooser = random.Random(seed)
    prompts = [_text(chooser, chooser.choice((1, 3, 20, 60))) for _ in range(max(1, number // 5))]
    return [
        Request(each, list(chooser.choice(prompts)), _text(chooser, chooser.randint(1, 40))) for each in range(number)
    ]


def _run(number: int, batch: int, seed: int, strategy: str = "adaptive", tells_ids: bool = False):
    graph = graph_of([_text(random.Random(seed + 1), 2_000)], 5, _VOCABULARY)
    drafter = WatchedDrafter(LocalDrafter(graph, DraftConfig(strategy=strategy)))
    sessions = EngineSessions(drafter, most_drafted=6, vocabulary_size=_VOCABULARY, cost=LearnedCost())
    requests = _requests(number, seed)
    wanted = {each.number: each.text + each.rest for each in requests}
    runner = EngineRunner(drafter, sessions, requests, batch=batch, seed=seed, tells_ids=tells_ids)
    runner.run()
    assert {each.number: each.text for each in runner.done} == wanted
    assert not drafter.texts, "a session is left open"
    assert not drafter.complaints
    assert drafter.state == "ok"
    assert not sessions.counts.failed_steps
    return runner, drafter, sessions


@settings(max_examples=3)
@given(seed=st.integers(0, 1 << 30), batch=st.sampled_from([1, 8, 32]), tells_ids=st.booleans())
def test_five_hundred_requests_are_drafted_from_their_own_texts(seed, batch, tells_ids):
    runner, drafter, sessions = _run(500, batch, seed, tells_ids=tells_ids)
    assert sessions.counts.offered_tokens > 100
    assert 500 <= drafter.num_opened < runner.num_passes * batch


@settings(max_examples=20)
@given(seed=st.integers(0, 1 << 30), strategy=st.sampled_from(["tree", "greedy", "sampling", "specexec"]))
def test_every_strategy_gives_chains(seed, strategy):
    _run(20, 4, seed, strategy)


def _row(*token_ids: int, **more: str) -> EngineRow:
    return EngineRow(np.array(token_ids, np.int32), 8, **more)


def test_a_row_goes_on_with_a_text_that_it_begins_with_wherever_it_stands():
    tracker = SequenceTracker(4)
    first, _ = tracker.match([_row(1, 2, 3), _row(1, 2, 3), _row(7, 8)])
    assert len({each.session_id for each in first}) == 3  # equal rows are two sequences
    again, ended = tracker.match([_row(7, 8, 9), _row(1, 2, 3, 4), _row(1, 2, 3, 5)])
    assert (again[0], {each.session_id for each in again[1:]}, ended) == (first[2], {1, 2}, [])
    [longer], ended = tracker.match([_row(1, 2, 3, 4, 5, 6, 7, 8, 9)])  # more than a step can write
    assert longer not in first
    assert {each.session_id for each in ended} == {1, 2, 3}
    assert longer.text.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9]


def test_a_request_is_told_by_its_id_and_its_text():
    tracker = SequenceTracker(4)
    [first], _ = tracker.match([_row(1, 2, request_id="a")])
    [same, new], _ = tracker.match([_row(1, 2, 3, request_id="a"), _row(1, 2, 3, request_id="b")])
    assert same is first
    assert new is not first
    [other], ended = tracker.match([_row(9, 9, 9, 9, 9, request_id="a")])
    assert other is not first
    assert ended == [first, new]


def test_tenants_are_passed_on_when_a_sequence_begins():
    drafter = WatchedDrafter(LocalDrafter(None, DraftConfig(strategy="adaptive")))
    sessions = EngineSessions(drafter, most_drafted=4, vocabulary_size=_VOCABULARY)
    sessions.draft([_row(1, 2, tenant="red"), _row(3, 4)])
    sessions.draft([_row(1, 2, 3, tenant="red"), _row(3, 4, 5)])
    assert list(drafter.tenants.values()) == ["red"]


class _Broken(WatchedDrafter):
    def draft(self, steps):
        raise RuntimeError("no")


def test_a_drafter_that_fails_costs_nothing_but_its_drafts():
    sessions = EngineSessions(
        _Broken(LocalDrafter(None, DraftConfig(strategy="adaptive"))), most_drafted=4, vocabulary_size=_VOCABULARY
    )
    assert [len(draft) for draft in sessions.draft([_row(1, 2), _row(3, 4)])] == [0, 0]
    assert sessions.counts.failed_steps == 1
    sessions.close()
    assert [len(draft) for draft in sessions.draft([_row(1, 2)])] == [0]


def test_ids_that_the_model_does_not_have_are_not_drafted():
    drafter = LocalDrafter(graph_of([[1, 30, 1, 30, 1, 30, 1]], 3, _VOCABULARY), DraftConfig(strategy="greedy"))
    assert len(EngineSessions(drafter, most_drafted=4, vocabulary_size=31).draft([_row(1, 30, 1)])[0]) == 4
    assert len(EngineSessions(drafter, most_drafted=4, vocabulary_size=30).draft([_row(1, 30, 1)])[0]) == 0


def test_where_nothing_pays_fewer_steps_are_drafted_for_until_something_does():
    phrase = list(range(8))
    drafter = WatchedDrafter(LocalDrafter(graph_of([phrase * 50], 3, _VOCABULARY), DraftConfig(strategy="adaptive")))
    flat = KnownCost(CostCurve((1,), (1.0,)))
    steep = KnownCost(CostCurve((1, 2), (1.0, 50.0)))
    sessions = EngineSessions(drafter, most_drafted=4, vocabulary_size=_VOCABULARY, cost=steep)
    text = phrase * 10

    def asked(num_steps: int) -> int:
        before = drafter.num_calls
        for _ in range(num_steps):
            text.append(phrase[len(text) % 8])
            sessions.draft([EngineRow(text, 8)])
        return drafter.num_calls - before

    assert asked(32) == 32
    assert asked(40) == 10
    sessions._cost = flat
    assert asked(4) == 1
    assert asked(4) == 4
    assert drafter.num_opened == 1
    assert not drafter.complaints
