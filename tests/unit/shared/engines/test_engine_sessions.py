"""Rows of an engine's batch as sessions: rows that move, return or have equal neighbours draft from their own text."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speculant_graph import CostCurve, DraftConfig, LocalDrafter
from speculant_graph._core import RowTracker
from speculant_graph.budget import LearnedCost, StepPrices
from speculant_graph.engines.engine_sessions import GRAPHS, TENANT, EngineSessions
from speculant_graph.engines.rows import DrafterRows
from speculant_graph.strategies import NGRAM_STRATEGIES
from speculant_graph.types import RowDrafter
from support.engine_runner import EngineRunner, Request, WatchedDrafter
from support.graphs import graph_of

_VOCABULARY = 40
_PHRASES = [list(range(start, start + 5)) for start in (5, 20, 30)]


def _text(chooser: random.Random, length: int) -> list[int]:
    """A text made of few phrases, so that texts often have equal prefixes and suffixes."""
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


def _run(
    number: int, batch: int, seed: int, strategy: str = "adaptive", tells_ids: bool = False, *, is_priced: bool = False
):
    graph = graph_of([_text(random.Random(seed + 1), 2_000)], 5, _VOCABULARY)
    drafter = WatchedDrafter(LocalDrafter(graph, DraftConfig(strategy=strategy)))
    cost = LearnedCost() if is_priced else None  # passes take no time here, so drafts never pay
    sessions = EngineSessions(DrafterRows(drafter), most_drafted=6, vocabulary_size=_VOCABULARY, cost=cost)
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


@settings(max_examples=10)
@given(
    seed=st.integers(0, 1 << 30),
    batch=st.sampled_from([1, 8]),
    tells_ids=st.booleans(),
    share=st.sampled_from([0.0, 0.01, 0.3]),
    longest=st.sampled_from([10, 150, 400]),
)
def test_text_is_read_though_no_step_is_drafted_for(
    seed: int, batch: int, tells_ids: bool, share: float, longest: int
) -> None:
    chooser = random.Random(seed)
    requests = [
        Request(each, _text(chooser, chooser.choice((1, 20, 300))), _text(chooser, longest)) for each in range(20)
    ]
    drafter = WatchedDrafter(LocalDrafter(graph_of([_text(chooser, 500)], 5, _VOCABULARY), DraftConfig()))
    sessions = EngineSessions(DrafterRows(drafter), most_drafted=6, vocabulary_size=_VOCABULARY, cost=LearnedCost())
    assert sessions._budget is not None
    sessions._budget.may_draft = lambda: chooser.random() < share  # type: ignore[method-assign]
    sessions._budget.num_rest = lambda: chooser.choice((0, 1, 2, 40))  # type: ignore[method-assign]
    runner = EngineRunner(drafter, sessions, requests, batch=batch, seed=seed, tells_ids=tells_ids)
    runner.run()
    sessions.close()
    assert not drafter.complaints
    assert not drafter.texts, "a session is left open"
    assert not sessions.counts.failed_steps
    ends = {tuple(text[-size:]) for text in drafter.ended for size in range(1, 257)}
    assert all(each.shown[-256:] in ends for each in runner.done if each.shown)


@settings(max_examples=50)
@given(seed=st.integers(0, 1 << 30), share=st.sampled_from([0.0, 0.05, 0.5]), largest_step=st.sampled_from([1, 4]))
def test_rows_that_are_followed_are_those_that_match(seed: int, share: float, largest_step: int) -> None:
    """Follow rows where possible; the other tracker matches every batch."""
    chooser = random.Random(seed)
    tracker, oracle = RowTracker(4), RowTracker(4)
    prompts = [_text(chooser, length) for length in (1, 1, 40, 300)]
    rows = [list(chooser.choice(prompts)) for _ in range(5)]
    ids: list[int] = []
    for step in range(300):
        for row in rows:
            row += _text(chooser, chooser.randint(1, largest_step))
        if chooser.random() < share:  # a row ends, moves or begins
            index = chooser.randrange(len(rows))
            rows[index] = chooser.choice((list(chooser.choice(prompts)), rows[-1]))
            rows = rows[: chooser.choice((4, 5))] + [list(prompts[2])] * chooser.randrange(2)
            rows = [list(row) for row in rows]
        if chooser.random() < 0.01:
            tracker.mark_read()
            oracle.mark_read()
        wanted = oracle.match(list(rows), None)
        if step % 40 and tracker.follow(list(rows)):
            assert not wanted.is_changed
            assert wanted.session_ids == ids
            continue
        found = tracker.match(list(rows), None)
        ids = found.session_ids
        assert ids == wanted.session_ids
        assert (found.begun, found.ended) == (wanted.begun, wanted.ended)
        kept = [[(row.id, row.begun, row.read, row.size, row.tail) for row in each.unread] for each in (found, wanted)]
        assert kept[0] == kept[1]
        assert tracker.prompt_lengths() == oracle.prompt_lengths()


@settings(max_examples=20)
@given(seed=st.integers(0, 1 << 30), strategy=st.sampled_from(NGRAM_STRATEGIES))
def test_every_strategy_gives_chains(seed, strategy):
    _run(20, 4, seed, strategy)
    _run(20, 4, seed, strategy, is_priced=True)


@pytest.mark.parametrize("strategy", NGRAM_STRATEGIES)
@settings(max_examples=10)
@given(seed=st.integers(0, 1 << 30), batch=st.sampled_from([1, 5]), is_priced=st.booleans())
def test_one_call_of_the_core_drafts_what_sequences_one_by_one_would_get(strategy, seed, batch, is_priced):
    graph = graph_of([_text(random.Random(seed + 1), 2_000)], 5, _VOCABULARY)

    def drafts_of(rows: RowDrafter) -> list[Any]:
        if is_priced:  # prices that do not depend on the clock
            prices = StepPrices(1.0 + 0.25 * np.arange(64.0) ** 1.2, 1.0, 0.02)
            draft_rows = rows.draft_rows
            rows.draft_rows = lambda batch, budgets, *_: draft_rows(batch, budgets, prices)  # type: ignore[method-assign]
        sessions = EngineSessions(rows, most_drafted=6, vocabulary_size=_VOCABULARY)
        seen: list[Any] = []
        draft = sessions.draft

        def watched(*arguments: Any, **more: Any) -> Any:
            made = draft(*arguments, **more)
            seen.append((made.lists(), made.parents, made.path_probabilities))
            return made

        sessions.draft = watched  # type: ignore[method-assign]
        drafter = WatchedDrafter(LocalDrafter(None, DraftConfig(strategy="adaptive")))  # never asked for drafts
        EngineRunner(drafter, sessions, _requests(15, seed), batch=batch, seed=seed).run()
        sessions.close()
        assert not sessions.counts.failed_steps
        return seen

    config = DraftConfig(strategy=strategy)
    slow = drafts_of(DrafterRows(LocalDrafter(graph, config), makes_trees=True))
    assert drafts_of(LocalDrafter(graph, config)) == slow


class _SlowTracker:
    """The core's matching rule, implemented with whole texts."""

    def __init__(self, most_new: int) -> None:
        self.most_new, self.last_id = most_new, 0
        self.former: list[tuple[int, str, list[int]]] = []

    def match(self, texts: list[list[int]], names: list[str] | None) -> tuple[list[int], list[int], set[int]]:
        left: list[tuple[int, str, list[int]] | None] = [*self.former]
        rows = list(zip(texts, names or [""] * len(texts), strict=True))

        def continues(row: tuple[list[int], str], former: tuple[int, str, list[int]]) -> bool:
            (text, name), (_, its_name, its_text) = row, former
            if name != its_name or len(text) < len(its_text):
                return False
            return bool(name) or (len(text) <= len(its_text) + self.most_new and text[: len(its_text)] == its_text)

        found: list[int] = [0] * len(rows)
        for index, row in enumerate(rows[: len(left)]):
            if (each := left[index]) is not None and continues(row, each):
                found[index], left[index] = each[0], None
        begun = []
        for index, row in enumerate(rows):
            if not found[index]:
                fitting = [each for each in left if each is not None and continues(row, each)]
                if fitting:
                    longest = max(fitting, key=lambda each: len(each[2]))
                    found[index] = longest[0]
                    left[left.index(longest)] = None
            if not found[index]:
                self.last_id += 1
                found[index] = self.last_id
                begun.append(index)
        self.former = [(number, name, text) for number, (text, name) in zip(found, rows, strict=True)]
        return found, begun, {each[0] for each in left if each is not None}


@given(seed=st.integers(0, 1 << 30), has_names=st.booleans())
def test_rows_are_matched_as_by_the_rule(seed, has_names):
    chance = random.Random(seed)
    fast, slow = RowTracker(4), _SlowTracker(4)
    rows: list[tuple[list[int], str]] = []
    for _ in range(12):
        for text, _ in rows:
            text += [chance.randrange(3) for _ in range(chance.choice([0, 1, 3, 4, 5]))]
        if chance.random() < 0.5:
            rows.insert(chance.randint(0, len(rows)), ([chance.randrange(2) for _ in range(chance.randint(0, 5))], ""))
        if rows and chance.random() < 0.3:
            rows.pop(chance.randrange(len(rows)))
        if chance.random() < 0.3:
            chance.shuffle(rows)
        rows = [(text, (name or str(chance.random())) if has_names else "") for text, name in rows]
        texts, names = [list(text) for text, _ in rows], [name for _, name in rows] if has_names else None
        made = [np.array(text, np.int32) if chance.random() < 0.7 else text for text in texts]
        batch, (ids, begun, ended) = fast.match(made, names), slow.match(texts, names)
        assert (batch.session_ids, batch.begun, set(batch.ended)) == (ids, begun, ended)
        assert batch.is_changed == bool(begun or ended)


def _arrays(*texts: list[int]) -> list[Any]:
    return [np.array(text, np.int32) for text in texts]


def test_tenants_are_passed_on_when_a_sequence_begins():
    drafter = WatchedDrafter(LocalDrafter(None, DraftConfig(strategy="adaptive")))
    sessions = EngineSessions(DrafterRows(drafter), most_drafted=4, vocabulary_size=_VOCABULARY)
    sessions.draft(_arrays([1, 2], [3, 4]), [8, 8], tenants=["red", None])
    sessions.draft(_arrays([1, 2, 3], [3, 4, 5]), [8, 8], tenants=["red", None])
    assert list(drafter.tenants.values()) == ["red"]


def test_numbers_are_names_and_what_can_be_no_name_teaches_nobody(warnings):
    text, drafter = list(range(1, 13)), LocalDrafter(None, DraftConfig(strategy="adaptive", sources=["learned"]))
    sessions = EngineSessions(drafter, most_drafted=4, vocabulary_size=_VOCABULARY)

    def drafted(tenant):
        """Write the text for a tenant; return the tokens drafted for it."""
        made = []
        for length in range(6, len(text) + 1):
            made += sessions.draft(_arrays(text[:length], [20, 21]), [8, 8], tenants=[tenant, None]).lists()[0]
        sessions.draft(_arrays([20, 21]), [8], tenants=[None])
        return made

    names = [41, 42, "\ud800", "x" * 300, "", "\ud800", True, 1.5, ["red"], None]
    assert not any(map(drafted, names)), "each of another tenant, or of none that can be taught"
    assert len(warnings) == 6, "one for each wrong name"
    assert drafted("41"), "the same name"
    assert drafted(None)
    sessions.close()


def test_unknown_keys_of_a_request_are_named_once(warnings):
    names_of = EngineSessions(LocalDrafter(None, DraftConfig()), most_drafted=2, vocabulary_size=_VOCABULARY).names_of
    assert names_of(None) is names_of({"top_k": 1}) is names_of([1]) is None
    assert names_of({TENANT: "red", "other": 1}) == ("red", None)
    assert names_of({GRAPHS: "docs", TENANT: 7}) == (7, "docs")
    for _ in range(2):
        assert names_of({"speculant_tennant": "red"}) is None
    assert len(warnings) == 1
    assert "speculant_tennant" in str(warnings[0])
    for number in range(200):
        names_of({f"speculant_{number % 50}": 1})
    assert len(warnings) == 20, "a client can't fill the log"


def test_a_graph_that_a_request_names_in_vain_costs_it_no_drafts(warnings):
    text = [1, 2, 3, 1, 2, 3, 1, 2]
    sessions = EngineSessions(
        LocalDrafter(None, DraftConfig(strategy="adaptive")), most_drafted=2, vocabulary_size=_VOCABULARY
    )
    for length in (7, 8):
        made = sessions.draft(_arrays(text[:length], text[:length]), [2, 2], graphs=["docs+house", None]).lists()
    assert made[0] == made[1] != []
    assert len(warnings) == 1
    sessions.close()


class _Broken(WatchedDrafter):
    def draft(self, steps):
        raise RuntimeError("no")


def test_a_drafter_that_fails_costs_nothing_but_its_drafts():
    broken = DrafterRows(_Broken(LocalDrafter(None, DraftConfig(strategy="adaptive"))))
    sessions = EngineSessions(broken, most_drafted=4, vocabulary_size=_VOCABULARY)
    assert sessions.draft(_arrays([1, 2], [3, 4]), [8, 8]).lists() == [[], []]
    assert sessions.counts.failed_steps == 1
    sessions.close()
    assert sessions.draft(_arrays([1, 2]), [8]).lists() == [[]]


def test_a_step_that_could_not_open_its_sessions_costs_the_next_none():
    class Refusing(LocalDrafter):
        refuses = True

        def open(self, *given, **more):
            if self.refuses:
                raise RuntimeError("no")
            return super().open(*given, **more)

    drafter = Refusing(None, DraftConfig(strategy="adaptive"))
    sessions = EngineSessions(drafter, most_drafted=4, vocabulary_size=_VOCABULARY)
    texts = _arrays([1, 2, 1, 2, 1], [3, 4, 3, 4, 3])
    assert sessions.draft(texts, [8, 8]).num_nodes == 0
    assert (sessions.drafter_state, sessions.drafter_failure) == ("unavailable", "no")
    drafter.refuses = False
    assert all(sessions.draft(texts, [8, 8]).lists())
    assert (sessions.drafter_state, sessions.drafter_failure) == ("ok", "")
    sessions.close()


@pytest.mark.parametrize("wrong", [{"capacities": [8]}, {"tenants": ["red"]}, {"graphs": ["docs"] * 3}])
def test_lists_of_other_lengths_cost_one_step_its_drafts(wrong):
    sessions = EngineSessions(
        LocalDrafter(None, DraftConfig(strategy="adaptive")), most_drafted=4, vocabulary_size=_VOCABULARY
    )
    texts = _arrays([1, 2, 1, 2, 1], [3, 4, 3, 4, 3])
    assert sessions.draft(texts, **{"capacities": [8, 8]} | wrong, request_ids=["a", "b"]).num_nodes == 0
    assert sessions.counts.failed_steps == 1
    assert all(sessions.draft(texts, [8, 8], request_ids=["a", "b"]).lists())
    sessions.close()


def test_threads_that_share_sessions_break_nothing():
    sessions = EngineSessions(
        LocalDrafter(None, DraftConfig(strategy="adaptive")), most_drafted=4, vocabulary_size=_VOCABULARY,
        cost=LearnedCost(),
    )  # fmt: skip

    def draft_often(first: int) -> None:
        text = [first, first + 1] * 100
        for length in range(6, len(text)):
            sessions.draft(_arrays(text[:length]), [8])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(draft_often, range(0, 32, 4)))
    draft_often(1)
    assert sessions.counts.failed_steps == 0
    sessions.close()


def test_ids_that_the_model_does_not_have_are_not_drafted():
    drafter = LocalDrafter(graph_of([[1, 30, 1, 30, 1, 30, 1]], 3, _VOCABULARY), DraftConfig(strategy="greedy"))
    for size, number in ((31, 4), (30, 0)):
        sessions = EngineSessions(drafter, most_drafted=4, vocabulary_size=size)
        assert sessions.draft([[1, 30, 1]], [8]).num_nodes == number
        sessions.draft([], [])


@pytest.mark.parametrize("text", [["a"], [1.5], None, 7])
def test_what_is_no_text_costs_nothing_but_drafts(text):
    sessions = EngineSessions(
        LocalDrafter(None, DraftConfig(strategy="adaptive")), most_drafted=4, vocabulary_size=_VOCABULARY
    )
    assert sessions.draft([text], [8]).lists() == [[]]
    assert sessions.counts.failed_steps == 1
    assert sessions.draft([[1, 2, 1, 2, 1]], [8]).num_nodes >= 0
    assert sessions.counts.failed_steps == 1


def test_where_drafts_only_lose_most_steps_go_without():
    """Every draft is wrong, and a pass with drafts takes twice as long."""
    phrase = list(range(8))
    drafter = WatchedDrafter(LocalDrafter(graph_of([phrase * 50], 3, _VOCABULARY), DraftConfig(strategy="adaptive")))
    sessions = EngineSessions(
        DrafterRows(drafter), most_drafted=4, vocabulary_size=_VOCABULARY, cost=CostCurve((1, 2), (1e-6, 1.5e-6))
    )
    chance, text = random.Random(3), phrase * 10
    for _ in range(600):
        text.append((text[-1] + 2 + chance.randrange(5)) % 8)
        sessions.draft([text], [8])
    assert drafter.num_calls < 120
    assert drafter.num_opened == 1
    assert not drafter.complaints
