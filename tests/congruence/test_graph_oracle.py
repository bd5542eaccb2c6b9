"""The fast graph and its drafts are exactly those of the slow, obvious ones."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from speculant_graph.draft.generator import DraftGenerator
from speculant_graph.graph.builder import build_from_token_ids
from speculant_graph.graph.export import ngrams_of_length, to_networkx
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.graph.oracle import OracleGraph
from speculant_graph.types import Fingerprint, StrategyName

VOCABULARY_SIZE = 2**21

token = st.one_of(st.integers(0, 4), st.sampled_from([0, 1, VOCABULARY_SIZE - 1]))
stream = st.lists(token, min_size=1, max_size=60)
order = st.integers(1, 10)
prompt = st.lists(st.one_of(token, st.sampled_from([-1, 77, VOCABULARY_SIZE, 2**33])), max_size=14)


def fast_graph(token_ids: list[int], max_order: int) -> NgramGraph:
    return build_from_token_ids(token_ids, Fingerprint("test", "00" * 32, VOCABULARY_SIZE), max_order=max_order)


@settings(max_examples=150, deadline=None)
@given(token_ids=stream, max_order=order)
def test_counts_and_distributions(token_ids: list[int], max_order: int) -> None:
    fast, slow = fast_graph(token_ids, max_order), OracleGraph(token_ids, max_order)
    counted: Counter[tuple[int, ...]] = Counter()
    for length in range(1, max_order + 2):
        ngrams = [tuple(row) for row in ngrams_of_length(fast.trie, length).tolist()]
        assert ngrams == sorted(ngrams)
        counted.update(dict(zip(ngrams, fast.trie.counts[length - 1].tolist(), strict=True)))
    assert counted == slow.ngram_counts
    for context, successors in slow.context_index.items():
        match = fast.match_order(context, len(context))
        assert match is not None
        row = fast.successors(match)
        assert dict(zip(row.token_ids.tolist(), row.counts.tolist(), strict=True)) == successors
        total = successors.total()
        probabilities = [fast.probability(context, successor) for successor in successors]
        assert probabilities == [count / total for count in successors.values()]
        assert sum(probabilities) == pytest.approx(1)
        assert fast.count([*context, next(iter(successors))]) == successors[next(iter(successors))]
        assert fast.order_of(context) == len(context)
    assert sum(fast.metadata.contexts_per_order) == len(slow.context_index)
    assert sum(fast.metadata.transitions_per_order) == sum(map(len, slow.context_index.values()))


@settings(max_examples=150, deadline=None)
@given(token_ids=stream, max_order=order, context=prompt)
def test_matches(token_ids: list[int], max_order: int, context: list[int]) -> None:
    fast, slow = fast_graph(token_ids, max_order), OracleGraph(token_ids, max_order)
    match, expected = fast.match(context), slow.longest_context(context)
    assert (match and match.order) == (expected and len(expected))
    if match is not None and expected is not None:
        successors = slow.context_index[expected]
        assert fast.most_frequent(match) == min(successors, key=lambda token: (-successors[token], token))


@settings(max_examples=300, deadline=None)
@given(
    token_ids=stream,
    max_order=order,
    context=prompt,
    k=st.integers(0, 12),
    strategy=st.sampled_from(["greedy", "sampling"]),
    seed=st.integers(0, 2**64),
    max_candidates=st.integers(0, 3),
)
def test_drafts(
    token_ids: list[int],
    max_order: int,
    context: list[int],
    k: int,
    strategy: StrategyName,
    seed: int,
    max_candidates: int,
) -> None:
    slow = OracleGraph(token_ids, max_order)
    expected, distributions = slow.draft(context, k, strategy, seed, max_candidates)
    generator = DraftGenerator(fast_graph(token_ids, max_order))
    draft = generator.draft(context, k, strategy, seed, max_candidates=max_candidates)
    assert list(draft.token_ids) == expected
    assert draft.is_chain
    assert draft.terminated_early == (len(expected) < k)
    proposals = [
        dict(zip(proposal.token_ids.tolist(), proposal.probabilities.tolist(), strict=True))
        for proposal in draft.proposals
    ]
    assert proposals == (distributions if strategy == "sampling" else [])


@settings(max_examples=50, deadline=None)
@given(token_ids=stream, max_order=st.integers(1, 4))
def test_networkx_edges(token_ids: list[int], max_order: int) -> None:
    slow = OracleGraph(token_ids, max_order)
    exported = to_networkx(fast_graph(token_ids, max_order))
    edges = {(context, successor): data for context, successor, data in exported.edges(data=True)}
    assert edges == {
        (context, successor): {"count": count, "weight": count / successors.total(), "order": len(context)}
        for context, successors in slow.context_index.items()
        for successor, count in successors.items()
    }
    tokens = {node: data["count"] for node, data in exported.nodes(data=True) if isinstance(node, int)}
    assert tokens == Counter(token_ids)


def test_sampling_has_the_distribution_of_the_corpus() -> None:
    token_ids = [0, 1] * 50 + [0, 2] * 30 + [0, 3] * 15 + [0, 4] * 5
    generator = DraftGenerator(fast_graph(token_ids, 1))
    num_draws = 20_000
    drawn = Counter(generator.draft([0], 1, "sampling", seed).token_ids[0] for seed in range(num_draws))
    expected = np.array([50, 30, 15, 5]) / 100 * num_draws
    assert stats.chisquare([drawn[token] for token in (1, 2, 3, 4)], expected).pvalue > 1e-4
