"""N-gram counts against a list of everything that was ever learned, and the drafts made from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from speculant_graph.draft import ngram_counts
from speculant_graph.draft.ngram_counts import NGramCounts, draft_nasd, learn_verified
from speculant_graph.errors import ConfigError, DraftRequestError
from speculant_graph.random_stream import PROPOSAL_STREAM, uniform
from speculant_graph.types import Draft

VOCABULARY = 4
Rows = list[list[int]]


class Oracle:
    """Keeps what followed every context as a list, the contexts in the order in which they were last learned."""

    def __init__(self, n: int, shortest: int, max_contexts: int) -> None:
        self.n, self.shortest, self.max_contexts = n, shortest, max_contexts
        self.followers: dict[tuple[int, ...], list[int]] = {}
        self.recent: list[tuple[int, ...]] = []

    def learn(self, context: Sequence[int], token_ids: Sequence[int]) -> None:
        for length in range(self.n - 1, self.shortest - 1, -1):
            if len(context) >= length and len(token_ids) > 0:
                key = tuple(context[len(context) - length :])
                self.followers.setdefault(key, []).extend(token_ids)
                self.recent = [other for other in self.recent if other != key] + [key]
        while len(self.recent) > self.max_contexts:
            del self.followers[self.recent.pop(0)]

    def initialize(self, rows: Rows) -> None:
        for row in rows:
            for place in range(1, len(row)):
                self.learn(row[:place], [row[place]])

    def update(self, contexts: Rows, next_tokens: Rows) -> None:
        for context, token_ids in zip(contexts, next_tokens, strict=True):
            self.learn(context, token_ids)

    def next_token(self, context: Sequence[int]) -> int | None:
        for length in range(self.n - 1, self.shortest - 1, -1):
            followers = self.followers.get(tuple(context[len(context) - length :])) if length <= len(context) else None
            if followers:
                most = max(Counter(followers).values())
                reached = {
                    token: [place for place, other in enumerate(followers) if other == token][most - 1]
                    for token, count in Counter(followers).items()
                    if count == most
                }
                return min(reached, key=lambda token: reached[token])
        return None


token_lists = st.lists(st.integers(0, VOCABULARY - 1), max_size=9)
operations = st.lists(
    st.one_of(
        st.lists(token_lists, max_size=3).map(lambda rows: ("initialize", rows, rows)),
        st.lists(st.tuples(token_lists, token_lists), max_size=3).map(
            lambda pairs: ("update", [pair[0] for pair in pairs], [pair[1] for pair in pairs])
        ),
    ),
    max_size=8,
)


@pytest.mark.parametrize("has_one_level", [False, True])
@given(operations, st.integers(2, 5), st.sampled_from([1, 2, 5, 10_000]), st.lists(token_lists, max_size=12))
def test_counts_equal_counting_everything(
    has_one_level: bool,
    learned: list[tuple[str, Rows, Rows]],
    n: int,
    max_contexts: int,
    contexts: Rows,
) -> None:
    shortest = n - 1 if has_one_level else 1
    storage = NGramCounts(n, VOCABULARY, shortest_context=shortest, max_contexts=max_contexts)
    oracle = Oracle(n, shortest, max_contexts)
    for name, rows, next_tokens in learned:
        if name == "initialize":
            storage.initialize(rows)
            oracle.initialize(rows)
        else:
            storage.update(rows, next_tokens)
            oracle.update(rows, next_tokens)
    assert len(storage) == len(oracle.followers) <= max_contexts
    contexts = [*contexts, *map(list, oracle.followers)]
    expected = [oracle.next_token(context) for context in contexts]
    token_ids, known = storage.next_token(contexts)
    assert known == [token_id is not None for token_id in expected]
    for context, token_id, right in zip(contexts, token_ids, expected, strict=True):
        random_token = int(uniform(0, len(context), PROPOSAL_STREAM) * VOCABULARY)
        assert token_id == (random_token if right is None else right)
        assert type(token_id) is int
    for context in oracle.followers:
        successors = storage.successors(context)
        assert Counter(dict(successors)) == Counter(oracle.followers[context])
        assert [count for _, count in successors] == sorted((count for _, count in successors), reverse=True)
        assert successors[0][0] == oracle.next_token(context)


def test_a_context_has_one_token_less_than_its_n_gram() -> None:
    storage = NGramCounts(2, 10)
    storage.initialize([[1, 2, 3]])
    assert storage.next_token([[1], [7, 2], [3], []])[1] == [True, True, False, False]
    one_level = NGramCounts(3, 10, shortest_context=2)
    one_level.update([[1, 2]], [[3]])
    assert one_level.next_token([[1, 2], [9, 1, 2], [2]]) == (
        [3, 3, one_level.next_token([[2]])[0][0]],
        [True, True, False],
    )


def test_the_longest_known_context_decides() -> None:
    storage = NGramCounts(4, 10)
    storage.initialize([[5, 1, 2, 6, 1, 3, 7, 1, 3]])
    assert storage.next_token([[1]]) == ([3], [True])
    assert storage.next_token([[5, 1]]) == ([2], [True])
    assert storage.next_token([[9, 5, 1]]) == ([2], [True])


def test_the_first_to_reach_a_count_stays() -> None:
    storage = NGramCounts(2, 10)
    for token_id, best in ((7, 7), (3, 7), (3, 3), (7, 3), (7, 7)):
        storage.update([[1]], [[token_id]])
        assert storage.next_token([[1]])[0] == [best]


def test_learning_adds_to_what_was_learned() -> None:
    storage = NGramCounts(3, 10)
    storage.initialize([[1, 2]])
    storage.initialize([[1, 4], [1, 4]])
    assert storage.successors([1]) == [(4, 2), (2, 1)]


def test_contexts_learned_from_the_longest_time_ago_go_first() -> None:
    storage = NGramCounts(2, 10, max_contexts=2)
    storage.update([[1], [2]], [[5], [5]])
    storage.next_token([[2]])  # reading does not count
    storage.update([[1], [3]], [[6], [5]])
    assert storage.next_token([[1], [2], [3]])[1] == [True, False, True]
    assert storage.successors([1]) == [(5, 1), (6, 1)], "what stays is whole"


@given(st.lists(st.integers(0, 11), max_size=60))
def test_a_crowded_context_forgets_rare_successors_and_keeps_the_best(token_ids: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ngram_counts, "MAX_SUCCESSORS", 4)
        storage = NGramCounts(2, 12)
        for place, token_id in enumerate(token_ids):
            best = storage.next_token([[1]]) if place else None
            before = dict(storage.successors([1]))
            storage.update([[1]], [[token_id]])
            after = dict(storage.successors([1]))
            if token_id in before or len(before) < 4:
                before[token_id] = before.get(token_id, 0) + 1
                assert after == before
            else:
                assert len(after) == 2
                assert best is not None
                assert storage.next_token([[1]]) == best
                kept = {**before, token_id: 1}
                assert all(kept[token_id] == count for token_id, count in after.items())
                assert min(after.values()) >= max(
                    (count for token_id, count in kept.items() if token_id not in after), default=0
                )


def test_random_tokens_depend_on_the_position_alone() -> None:
    storage = NGramCounts(3, 1000)
    token_ids, known = storage.next_token([[1], [2], [1, 2]])
    assert known == [False] * 3
    assert token_ids[0] == token_ids[1] != token_ids[2]
    assert storage.next_token([[9]], position=2)[0] == token_ids[2:]
    assert len({storage.next_token([[1]], position)[0][0] for position in range(100)}) > 80
    assert NGramCounts(2, 1).next_token([[0] * length for length in range(20)])[0] == [0] * 20


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n": 1, "vocabulary_size": 5}, "n of an n-gram storage is 1; give at least 2"),
        ({"n": 2, "vocabulary_size": 0}, "vocabulary_size .* is 0; give at least 1"),
        ({"n": 2, "vocabulary_size": 5, "max_contexts": 0}, "max_contexts .* is 0; give at least 1"),
    ],
)
def test_sizes_that_are_none_are_refused(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        NGramCounts(**arguments)


def test_bad_batches_teach_nothing() -> None:
    storage = NGramCounts(3, 5)
    with pytest.raises(DraftRequestError, match=r"2 contexts came with 1 rows .*; give one row per context"):
        storage.update([[1], [2]], [[3]])
    with pytest.raises(DraftRequestError, match="take batches of token ids"):
        storage.update([[1], [1]], [[2], ["a"]])  # type: ignore[list-item]
    for learn in (lambda: storage.update([1], [[2]]), lambda: storage.update([[1]], [2])):  # type: ignore[list-item]
        with pytest.raises(DraftRequestError, match="take batches of token ids; put a single sequence into a list"):
            learn()
    for call in (storage.initialize, storage.next_token):
        with pytest.raises(DraftRequestError, match="put a single sequence into a list"):
            call([1, 2])  # type: ignore[list-item]
    with pytest.raises(DraftRequestError, match="take batches of token ids"):
        storage.initialize([[1, 2.5]])  # type: ignore[list-item]
    assert len(storage) == 0


def test_ids_outside_the_vocabulary_are_ids() -> None:
    """A model has more tokens than its tokenizer; only the random tokens must be below the size."""
    storage = NGramCounts(3, 5)
    storage.initialize([[1, 7, 3]])
    assert storage.next_token([[-1], [2**70], [99, 7], [1]]) == (
        [*storage.next_token([[9]] * 2)[0], 3, 7],
        [False, False, True, True],
    )


def test_a_row_may_begin_with_tokens_that_are_context_alone() -> None:
    storage, parts = NGramCounts(4, 5), NGramCounts(4, 5)
    tokens = np.random.default_rng(0).integers(0, 5, 100).tolist()
    storage.initialize([tokens])
    for start in range(0, 100, 7):
        first = max(0, start - 3)
        parts.initialize([tokens[first : start + 7]], start - first)
    assert list(parts.counts.items()) == list(storage.counts.items())
    assert parts.most_frequent == storage.most_frequent


def test_nothing_to_learn_and_nothing_to_predict() -> None:
    storage = NGramCounts(3, 5)
    storage.initialize([])
    storage.initialize([[], [1]])
    storage.update([], [])
    storage.update([[], [1]], [[2], []])
    assert len(storage) == 0
    assert storage.next_token([]) == ([], [])
    assert storage.successors([]) == storage.successors([1]) == []


@pytest.mark.parametrize("batch", [np.array, torch.tensor, lambda rows: [tuple(rows[0]), *rows[1:]]])
def test_batches_may_be_arrays_or_tensors(batch: Callable[[Rows], Any]) -> None:
    storage = NGramCounts(3, 9)
    storage.initialize(batch([[1, 2, 3]]))
    storage.update(batch([[2, 3]]), batch([[8, 8]]))
    token_ids, known = storage.next_token(batch([[1, 2], [2, 3]]))
    assert (token_ids, known) == ([3, 8], [True, True])
    assert {type(token_id) for token_id in [*token_ids, *sum(storage.counts, ())]} == {int}
    assert draft_nasd(storage, batch([[7, 1]])[0], 2).token_ids == (2, 3)
    for call in (storage.initialize, storage.next_token):
        with pytest.raises(DraftRequestError, match="put a single sequence into a list"):
            call(batch([[1, 2]])[0])


@given(st.lists(token_lists, max_size=4), token_lists, st.integers(-1, 8), st.booleans(), st.integers(2, 4))
def test_drafts_equal_the_loop_of_next_tokens(prompts: Rows, token_ids: list[int], k: int, stops: bool, n: int) -> None:
    storage, oracle = NGramCounts(n, VOCABULARY), Oracle(n, 1, 10_000)
    storage.initialize(prompts)
    oracle.initialize(prompts)
    drafted: list[int] = []
    while len(drafted) < k:
        best = oracle.next_token([*token_ids, *drafted])
        if best is None:
            if stops:
                break
            best = int(uniform(0, len(token_ids) + len(drafted), PROPOSAL_STREAM) * VOCABULARY)
        drafted.append(best)
    expected = Draft(tuple(drafted), tuple(range(len(drafted))), strategy="nasd", terminated_early=len(drafted) < k)
    assert draft_nasd(storage, token_ids, k, stop_if_unknown=stops) == expected
    end = token_ids[-(n - 1) :]
    assert draft_nasd(storage, end, k, stop_if_unknown=stops, position=len(token_ids)) == expected


def test_a_draft_ends_at_an_unknown_context_only_if_asked_to() -> None:
    storage = NGramCounts(4, 50)
    storage.initialize([[1, 2, 3]])
    assert draft_nasd(storage, [1], 5) == Draft((2, 3), (0, 1), strategy="nasd", terminated_early=True)
    draft = draft_nasd(storage, [1], 5, stop_if_unknown=False)
    assert draft.token_ids[:2] == (2, 3)
    assert len(draft) == 5
    assert not draft.terminated_early
    assert draft_nasd(storage, [], 5) == Draft(strategy="nasd", terminated_early=True)
    assert draft_nasd(storage, [1], 0) == Draft(strategy="nasd")


@given(
    token_lists,
    st.integers(0, 9),
    st.lists(st.lists(st.integers(0, VOCABULARY - 1), min_size=5, max_size=5, unique=False), min_size=9, max_size=9),
    st.integers(1, 5),
    st.booleans(),
)
def test_verified_tokens_are_learned_position_by_position(
    token_ids: list[int], start: int, rows: Rows, filler_top_k: int, has_rows: bool
) -> None:
    start = min(start, len(token_ids))
    emitted = len(token_ids) - start
    oracle = Oracle(3, 1, 10_000)
    for place in range(start, len(token_ids)):
        oracle.learn(token_ids[:place], [token_ids[place]])
        if has_rows and filler_top_k > 1:
            oracle.learn(token_ids[:place], rows[place - start][:filler_top_k])
    storage = NGramCounts(3, VOCABULARY)
    top_rows = np.array(rows, np.int64)[:emitted] if has_rows else None
    learn_verified(storage, token_ids, start, top_rows, filler_top_k)  # type: ignore[arg-type]
    assert {context: Counter(dict(storage.successors(context))) for context in oracle.followers} == {
        context: Counter(followers) for context, followers in oracle.followers.items()
    }
    assert len(storage) == len(oracle.followers)


def test_the_filler_makes_alternatives_known() -> None:
    storage = NGramCounts(3, 100)
    learn_verified(storage, [10, 11, 12], 2, [[12, 40, 41, 42]], filler_top_k=3)
    assert storage.successors([11]) == [(12, 2), (40, 1), (41, 1)]
    learn_verified(storage, [50, 51], 1, [[51, 60]], filler_top_k=1)
    assert storage.successors([50]) == [(51, 1)]
    learn_verified(storage, [10, 11, 12, 13], 3, [[]])
    assert storage.successors([12]) == [(13, 1)], "a row may be missing"


def test_rows_must_belong_to_the_emitted_tokens() -> None:
    storage = NGramCounts(3, 100)
    with pytest.raises(DraftRequestError, match="1 rows of top tokens came with 2 emitted tokens; give one row per"):
        learn_verified(storage, [1, 2, 3], 1, [[1, 2]])
    with pytest.raises(DraftRequestError, match="take batches of token ids"):
        learn_verified(storage, [1, 2, 3], 1, [[2, 5], [3, "a"]])  # type: ignore[list-item]
    assert len(storage) == 0
