"""N-gram counts against a list of everything that was ever learned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculant_graph.types import Feedback, SequenceStep
from speculant_verifier.papers.nasd_drafter import NasdDrafter, NGramCounts

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

    def learn_all(self, token_ids: Sequence[int]) -> None:
        for i in range(1, len(token_ids)):
            self.learn(token_ids[:i], [token_ids[i]])

    def successor(self, context: Sequence[int]) -> int | None:
        for length in range(self.n - 1, self.shortest - 1, -1):
            followers = self.followers.get(tuple(context[len(context) - length :])) if length <= len(context) else None
            if followers:
                most = max(Counter(followers).values())
                reached = {
                    token: [i for i, other in enumerate(followers) if other == token][most - 1]
                    for token, count in Counter(followers).items()
                    if count == most
                }
                return min(reached, key=lambda token: reached[token])
        return None


token_lists = st.lists(st.integers(0, VOCABULARY - 1), max_size=9)


@pytest.mark.parametrize("has_one_level", [False, True])
@given(
    st.lists(st.tuples(token_lists, st.none() | token_lists), max_size=20),
    st.integers(2, 5),
    st.sampled_from([1, 2, 5, 10_000]),
    st.lists(token_lists, max_size=12),
)
def test_counts_equal_counting_everything(
    has_one_level: bool,
    learned: list[tuple[list[int], list[int] | None]],
    n: int,
    max_contexts: int,
    contexts: Rows,
) -> None:
    shortest = n - 1 if has_one_level else 1
    counts = NGramCounts(n, shortest_context=shortest, max_contexts=max_contexts)
    oracle = Oracle(n, shortest, max_contexts)
    for token_ids, alternatives in learned:
        if alternatives is None:
            counts.learn(token_ids)
            oracle.learn_all(token_ids)
        else:
            counts.count(token_ids, alternatives)
            oracle.learn(token_ids, alternatives)
    assert len(counts.counts) == len(oracle.followers) <= max_contexts
    assert list(counts.counts) == oracle.recent
    for context in [*contexts, *oracle.followers]:
        assert counts.successor(context) == oracle.successor(context)
    assert counts.counts == {context: Counter(followers) for context, followers in oracle.followers.items()}
    assert counts.most_frequent == {context: oracle.successor(context) for context in oracle.followers}


TOKENS = st.integers(0, 4)


def expected_draft(learned: list[tuple[list[int], list[int]]], text: list[int], budget: int) -> tuple[int, ...]:
    """What the document's storage drafts, made of all that was learned: contexts, and the tokens that count there."""
    counts = NGramCounts(4)
    for context, tokens in learned:
        counts.count(context, tokens)
    window, drafted = list(text), []
    while len(drafted) < budget and (token := counts.successor(window)) is not None:
        drafted.append(token)
        window.append(token)
    return tuple(drafted)


@given(prompt=st.lists(TOKENS, max_size=30), data=st.data())
def test_storages_learn_what_was_emitted_and_what_else_was_probable(prompt: list[int], data: Any) -> None:
    drafter = NasdDrafter()
    drafter.open(1)
    text, learned, feedback = list(prompt), [(prompt[:i], [prompt[i]]) for i in range(1, len(prompt))], None
    for _ in range(data.draw(st.integers(1, 6))):
        [draft] = drafter.draft([SequenceStep(1, list(text), 6, feedback=feedback)])
        assert draft.token_ids == expected_draft(learned, text, 6)
        assert draft.is_chain
        accepted = data.draw(st.integers(0, len(draft)))
        emitted = [*draft.token_ids[:accepted], data.draw(TOKENS)]
        rows = data.draw(st.lists(st.permutations(range(5)), min_size=len(draft) + 1, max_size=len(draft) + 1))
        feedback = Feedback(draft.draft_id, range(len(draft) + 1), np.array(rows, np.int64))
        for token, row in zip(emitted, rows, strict=False):
            if text:
                learned.append((list(text), [token, *row[:3]]))
            text.append(token)


def test_another_text_and_other_sequences_teach_nothing() -> None:
    drafter = NasdDrafter()
    for session_id, text in ((1, [1, 2, 1, 2]), (2, [1, 3, 1])):
        drafter.open(session_id)
        drafter.draft([SequenceStep(session_id, text, 0)])
    one, two = drafter.draft([SequenceStep(1, [1, 2, 1], 1), SequenceStep(2, [1, 3, 1], 1)])
    assert (one.token_ids, two.token_ids) == ((2,), (3,))
    [other] = drafter.draft([SequenceStep(1, [4, 5, 4], 1)])
    assert other.token_ids == (5,)
    drafter.finish(1)
    drafter.finish(1)
    assert drafter.statistics.drafted_nodes == 3
