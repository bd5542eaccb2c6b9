"""N-gram counts, compared with a list of everything learned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculant_graph.config import DraftConfig
from speculant_graph.draft.options import target_row_width
from speculant_graph.errors import GenerationRequestError
from speculant_graph.types import Feedback, SequenceStep, SessionOptions
from speculant_verifier.nasd import nasd_drafter
from speculant_verifier.nasd.nasd_drafter import NasdDrafter, NGramCounts

VOCABULARY = 4
Rows = list[list[int]]


class Oracle:
    """Keeps the successors of every context as a list, and the contexts in the order of their last update."""

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
            sizes = Counter(map(len, self.recent))
            fullest = min(sizes, key=lambda length: (-sizes[length], length))
            forgotten = next(context for context in self.recent if len(context) == fullest)
            self.recent.remove(forgotten)
            del self.followers[forgotten]

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
    assert len(counts) == len(oracle.followers) <= max_contexts
    for order, table in counts.counts.items():
        assert list(table) == [context for context in oracle.recent if len(context) == order - 1]
    for context in [*contexts, *oracle.followers]:
        assert counts.successor(context) == oracle.successor(context)
    stored = {context: table for each in counts.counts.values() for context, table in each.items()}
    assert stored == {context: Counter(followers) for context, followers in oracle.followers.items()}
    most_frequent = {context: token for each in counts.most_frequent.values() for context, token in each.items()}
    assert most_frequent == {context: oracle.successor(context) for context in oracle.followers}


TOKENS = st.integers(0, 4)


def expected_draft(learned: list[tuple[list[int], list[int]]], text: list[int], budget: int) -> tuple[int, ...]:
    """Return the draft of the document's storage, rebuilt from all learned (context, tokens) pairs."""
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


def test_tenants_learn_over_sequences_and_not_from_each_other() -> None:
    drafter = NasdDrafter()

    def draft(session_id: int, text: list[int], **options: Any) -> tuple[int, ...]:
        drafter.open(session_id, SessionOptions(**options))
        [drafted] = drafter.draft([SequenceStep(session_id, text, 1)])
        drafter.finish(session_id)
        drafter.finish(session_id)
        return drafted.token_ids

    assert draft(1, [1, 2, 3]) == ()
    assert draft(2, [1, 2]) == (3,), "the tenant's storage keeps learning"
    assert draft(3, [1, 2], tenant="other") == ()
    assert draft(4, [7, 8, 7], tenant="other", learn=False) == (8,)
    assert draft(5, [7], tenant="other") == (), "it was not to be learned from"
    assert draft(6, [1, 2], learn=False) == (3,)
    with pytest.raises(GenerationRequestError) as caught:
        drafter.open(7, SessionOptions(graph="docs"))
    assert caught.value.field == "graph"
    drafter.close()
    assert draft(8, [1, 2]) == ()


def test_another_text_of_a_session_is_learned_anew() -> None:
    drafter = NasdDrafter()
    drafter.open(1)
    drafter.draft([SequenceStep(1, [1, 2, 1, 2], 0)])
    [other] = drafter.draft([SequenceStep(1, [4, 5, 4], 1)])
    assert other.token_ids == (5,)
    assert drafter.statistics.drafted_nodes == 1


def test_settings_of_the_strategy() -> None:
    def drafts(text: list[int], size: int = 11, **settings: Any) -> tuple[int, ...]:
        drafter = NasdDrafter(DraftConfig(strategy="nasd", **settings), size)
        drafter.open(1)
        return drafter.draft([SequenceStep(1, text, 3)])[0].token_ids

    text = [1, 2, 5, 3, 2, 6, 3, 2, 6, 1, 2]
    assert drafts(text)[0] == 5, "after (1, 2)"
    assert drafts(text, n=2)[0] == 6, "after (2,)"
    assert drafts([1, 9]) == ()
    unknown = drafts([1, 9], stop_if_unknown=False)
    assert len(unknown) == 3
    assert all(0 <= token < 11 for token in unknown)
    drafter = NasdDrafter(DraftConfig(strategy="nasd", max_learned_tokens=0))
    for session_id, text in ((1, [1, 2, 1, 2]), (2, [1])):
        drafter.open(session_id)
        [drafted] = drafter.draft([SequenceStep(session_id, text, 1)])
        assert drafted.token_ids == ((1,) if session_id == 1 else ()), "nothing is learned for later sequences"


@pytest.mark.parametrize("top_k", [0, 1, 2, 3])
def test_so_many_of_the_most_probable_tokens_are_learned(top_k: int) -> None:
    config = DraftConfig(strategy="nasd", filler_top_k=top_k)
    drafter = NasdDrafter(config)
    drafter.open(1)
    [draft] = drafter.draft([SequenceStep(1, [1], 1)])
    width = target_row_width(config)
    assert width == (top_k if top_k > 1 else 0)
    feedback = Feedback(draft.draft_id, [0], np.array([[7, 8, 9][:width]], np.int64)) if width else None
    drafter.draft([SequenceStep(1, [1, 7], 1, feedback=feedback)])
    [table] = drafter._sequences[1].tables
    assert set(table.counts[2][1,]) == {7, 8, 9} & {7, *[7, 8, 9][:width]}


def test_idle_tenants_go_where_all_hold_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nasd_drafter, "_MAX_ALL_CONTEXTS", 10)
    drafter = NasdDrafter(DraftConfig(strategy="nasd", n=2))
    for session_id, tenant in enumerate("abc", 1):
        drafter.open(session_id, SessionOptions(tenant=tenant))
        drafter.draft([SequenceStep(session_id, list(range(8)), 0)])
        if tenant != "b":
            drafter.finish(session_id)
    drafter.open(4, SessionOptions(tenant="d"))
    assert set(drafter._tenants) == {"b", "d"}, "b is being decoded"
