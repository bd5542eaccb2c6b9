"""Chains from the core equal the slow reference's, and samples follow the returned distribution."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from speculant_graph.config import DraftConfig
from speculant_graph.draft.generator import DraftGenerator
from speculant_graph.draft.options import DraftOptions
from speculant_graph.graph.layout import CHILD, Trie
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.strategies import StrategyName
from speculant_graph.types import CouplingName, Draft
from support.damage import damaged
from support.graphs import graph_of
from support.noise import gumbel_noise
from support.oracle import Distribution, OracleGraph

VOCABULARY_SIZE = 40

token = st.one_of(st.integers(0, 3), st.integers(0, VOCABULARY_SIZE - 1))
configs = st.builds(
    DraftConfig,
    k=st.integers(0, 12),
    strategy=st.sampled_from(["greedy", "sampling"]),
    max_candidates=st.sampled_from([0, 0, 1, 2, 3, 10]),
    temperature=st.sampled_from([1.0, 1.0, 0.7, 1.9, 0.01, 1e-320, 1e300]),
)


def distributions_of(draft: Draft) -> list[Distribution]:
    return [
        dict(zip(proposal.token_ids.tolist(), proposal.probabilities.tolist(), strict=True))
        for proposal in draft.proposals
    ]


def assert_as_reference(
    fast: NgramGraph,
    slow: OracleGraph,
    config: DraftConfig,
    context: list[int],
    seed: int,
    coupling: CouplingName = "none",
) -> None:
    expected, distributions = slow.draft(
        context, config.k, config.strategy, seed, config.max_candidates, coupling, config.temperature
    )
    options = DraftOptions(coupling=coupling)
    draft = DraftGenerator(fast, config).draft(context, config.k, config.strategy, seed, options=options)
    assert list(draft.token_ids) == expected
    assert distributions_of(draft) == (distributions if config.strategy == "sampling" else [])
    assert draft.is_chain
    assert draft.terminated_early == (len(expected) < config.k)
    for distribution in distributions:
        assert abs(math.fsum(distribution.values()) - 1) < 1e-6


@settings(max_examples=60)
@given(
    documents=st.lists(st.lists(token, min_size=1, max_size=60), min_size=1, max_size=3),
    max_order=st.integers(1, 7),
    boundaries=st.booleans(),
    config=configs,
    seed=st.one_of(st.integers(0, 2**64), st.integers(-(2**70), 2**70)),
    data=st.data(),
)
def test_chains(
    documents: list[list[int]],
    max_order: int,
    boundaries: bool,
    config: DraftConfig,
    seed: int,
    data: st.DataObject,
) -> None:
    fast = graph_of(documents, max_order, VOCABULARY_SIZE, boundaries=boundaries)
    slow = OracleGraph(documents if boundaries else [list(itertools.chain(*documents))], max_order)
    document = data.draw(st.sampled_from(documents))
    end = data.draw(st.integers(0, len(document)))
    other = data.draw(st.lists(st.one_of(token, st.sampled_from([-1, VOCABULARY_SIZE, 2**40])), max_size=1))
    assert_as_reference(fast, slow, config, document[max(0, end - 9) : end] + other, seed)


def test_long_rows() -> None:
    # Thousands of successors, and ties.
    random = np.random.default_rng(1)
    pairs = [(0, int(successor)) for successor in random.zipf(1.2, 9_000) % 3_000]
    text = [*itertools.chain(*pairs), *[0, 7] * 2_000]
    fast, slow = graph_of([text], 3, 3_000), OracleGraph([text], 3)
    assert len(fast.successors([0])) > 1_500
    ways: list[tuple[StrategyName, float, CouplingName]] = [
        ("greedy", 1.0, "none"),
        ("sampling", 1.0, "none"),
        ("sampling", 1.0, "gumbel"),
        ("sampling", 0.7, "none"),
        ("sampling", 2.5, "gumbel"),
    ]
    for (strategy, temperature, coupling), cap in itertools.product(ways, (0, 700)):
        config = DraftConfig(strategy=strategy, temperature=temperature, k=5, max_candidates=cap)
        for context in ([0], text[101:104]):
            assert_as_reference(fast, slow, config, context, 5, coupling)


def skewed_graph() -> NgramGraph:
    """Return a graph whose successors of (5, 0) differ from its successors of 0."""
    after_zero = {1: 50, 2: 30, 3: 15, 4: 5}
    after_both = {1: 5, 4: 15}
    text = [token for successor, count in after_zero.items() for token in [6, 0, successor] * count]
    text += [token for successor, count in after_both.items() for token in [5, 0, successor] * count]
    return graph_of([text], 2, 7)


def p_value(drawn: Counter[int], distribution: Distribution) -> float:
    total = sum(distribution.values())
    observed = [drawn[token] for token in distribution]
    expected = [drawn.total() * probability / total for probability in distribution.values()]
    assert sum(observed) == drawn.total()
    return float(stats.chisquare(observed, expected).pvalue)


@pytest.mark.parametrize("coupling", get_args(CouplingName))
@pytest.mark.parametrize("max_candidates", [0, 3])
def test_draws_have_the_exact_distribution(max_candidates: int, coupling: CouplingName) -> None:
    generator = DraftGenerator(skewed_graph(), DraftConfig(max_candidates=max_candidates))
    options = DraftOptions(coupling=coupling)
    drawn = Counter(generator.draft([5, 0], 1, "sampling", seed, options=options).token_ids[0] for seed in range(4_000))
    assert p_value(drawn, {1: 0.25, 4: 0.75}) > 1e-3
    # Control: moving 6 % from one token to another is detected.
    assert p_value(drawn, {1: 0.31, 4: 0.69}) < 1e-6


def first_agreements(coupling: CouplingName, seeds: range, noise_seed_shift: int = 0) -> float:
    """Return how often the first drafted token equals the token that a target p close to q emits by 'gumbel'."""
    fast = skewed_graph()  # q after 0: {1: .5, 2: .3, 3: .15, 4: .05}
    tokens = np.arange(1, 5)
    p = np.array([0.4, 0.25, 0.2, 0.15])
    generator, options = DraftGenerator(fast), DraftOptions(coupling=coupling)
    agreed = 0
    for seed in seeds:
        emitted = tokens[np.argmax(np.log(p) + gumbel_noise(seed, 2, tokens))]
        draft = generator.draft([6, 0], 1, "sampling", seed + noise_seed_shift, options=options)
        agreed += draft.token_ids[0] == emitted
    return agreed / len(seeds)


def test_coupled_drafts_are_accepted_far_more_often() -> None:
    seeds = range(4_000)
    independent = float(np.dot([0.4, 0.25, 0.2, 0.15], [0.5, 0.3, 0.15, 0.05]))  # sum of p q: 0.3125
    best = 0.4 + 0.25 + 0.15 + 0.05  # sum of min(p, q), the upper bound of any draft
    uncoupled, coupled = first_agreements("none", seeds), first_agreements("gumbel", seeds)
    assert abs(uncoupled - independent) < 0.03
    assert best - 0.1 < coupled < best + 0.02
    # Control: noise of another seed has no gain.
    assert abs(first_agreements("gumbel", seeds, noise_seed_shift=10**6) - independent) < 0.03


def draft_everywhere(graph: NgramGraph) -> None:
    """Draft in all ways from a damaged graph."""
    ways = [
        DraftOptions(strategy, max_candidates=cap, coupling=coupling, siblings=siblings, max_branches=3)
        for strategy, coupling, siblings in (
            ("greedy", "none", "none"), ("sampling", "none", "none"), ("sampling", "gumbel", "none"),
            ("sampling", "none", "without-replacement"), ("sampling", "none", "independent"),
        )
        for cap in (0, 2)
    ]  # fmt: skip
    generator = DraftGenerator(graph)
    for options, context in itertools.product(ways, itertools.product(range(-1, 7, 2), repeat=3)):
        draft = generator.draft(context, 8, options.strategy, seed=1, options=options)
        assert all(0 <= token_id < 2**21 for token_id in draft.token_ids)
        for token_id, proposal in zip(draft.token_ids, draft.proposals, strict=options.strategy == "sampling"):
            assert token_id in proposal.token_ids
            assert (proposal.probabilities > 0).all()
            assert abs(proposal.probabilities.sum(dtype=np.float64) - 1) < 1e-6


def draft_from_damaged_graphs(num_graphs: int) -> None:
    """Draft repeatedly from graphs with some damaged words."""
    graph = graph_of([np.random.default_rng(0).integers(0, 6, 300).tolist()], 3, 8)
    random = np.random.default_rng(1)
    for _ in range(num_graphs):
        draft_everywhere(damaged(graph, random))


@pytest.mark.hostile
def test_damaged_graphs_give_wrong_drafts_at_worst() -> None:
    draft_from_damaged_graphs(5)


def test_no_row_is_longer_than_the_vocabulary() -> None:
    graph = graph_of([np.random.default_rng(0).integers(0, 6, 300).tolist()], 3, 6)
    words = graph.trie.words.copy()
    overlong = NgramGraph(Trie(words, graph.trie.table), graph.metadata)
    records = overlong.trie.level(1)
    records[1:, CHILD] = records[-1, CHILD]
    assert len(overlong.successors([0])) == graph.trie.nodes_per_level[1] > 30
    (proposal,) = DraftGenerator(overlong, DraftConfig()).draft([0], 1, "sampling").proposals
    assert len(proposal.token_ids) == 6
