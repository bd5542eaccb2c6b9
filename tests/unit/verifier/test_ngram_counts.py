"""N-gram counts against a list of everything that was ever learned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculant_verifier.papers.nasd_drafter import NGramCounts

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
