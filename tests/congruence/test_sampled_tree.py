"""Sampled trees equal the slow reference's, and siblings follow the returned distribution."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from speculant_graph.config import DraftConfig
from speculant_graph.draft.generator import DraftGenerator
from speculant_graph.draft.options import DraftOptions
from speculant_graph.draft.session_drafter import SessionDrafter
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.types import Draft, SequenceStep, SiblingsName
from support.graphs import graph_of
from support.oracle import OracleGraph, draft_sampled_tree
from support.sessions import draft_batch

VOCABULARY_SIZE = 30
DRAWN: tuple[SiblingsName, ...] = ("without-replacement", "independent")

token = st.one_of(st.integers(0, 3), st.integers(0, VOCABULARY_SIZE - 1))
configs = st.builds(
    DraftConfig,
    k=st.integers(0, 20),
    strategy=st.just("sampling"),
    max_candidates=st.sampled_from([0, 0, 1, 2, 5]),
    max_branches=st.integers(1, 6),
    max_depth=st.integers(1, 6),
    temperature=st.sampled_from([1.0, 1.0, 0.7, 2.5]),
)


def draft_of(graph: NgramGraph, config: DraftConfig, context: list[int], siblings: SiblingsName, seed: int) -> Draft:
    return DraftGenerator(graph, config).draft(
        context, config.k, "sampling", seed, options=DraftOptions(siblings=siblings)
    )


@settings(max_examples=50)
@given(
    documents=st.lists(st.lists(token, min_size=1, max_size=60), min_size=1, max_size=3),
    max_order=st.integers(1, 5),
    boundaries=st.booleans(),
    config=configs,
    siblings=st.sampled_from(DRAWN),
    seed=st.one_of(st.integers(0, 2**64), st.integers(-(2**70), 2**70)),
    data=st.data(),
)
def test_trees(
    documents: list[list[int]],
    max_order: int,
    boundaries: bool,
    config: DraftConfig,
    siblings: SiblingsName,
    seed: int,
    data: st.DataObject,
) -> None:
    fast = graph_of(documents, max_order, VOCABULARY_SIZE, boundaries=boundaries)
    slow = OracleGraph(documents if boundaries else [list(itertools.chain(*documents))], max_order)
    document = data.draw(st.sampled_from(documents))
    end = data.draw(st.integers(0, len(document)))
    other = data.draw(st.lists(st.one_of(token, st.sampled_from([-1, VOCABULARY_SIZE, 2**40])), max_size=1))
    context = document[max(0, end - 9) : end] + other
    expected = draft_sampled_tree(slow, config, context, siblings, seed)
    draft = draft_of(fast, config, context, siblings, seed)
    assert list(draft.token_ids) == [node.token_id for node in expected]
    assert list(draft.parents) == [node.parent for node in expected]
    assert [dict(zip(q.token_ids.tolist(), q.probabilities.tolist(), strict=True)) for q in draft.proposals] == [
        node.q for node in expected
    ]
    assert draft.strategy == "sampling"
    assert draft.terminated_early == (len(expected) < config.k)
    assert_is_a_tree(draft, config, siblings)


def assert_is_a_tree(draft: Draft, config: DraftConfig, siblings: SiblingsName) -> None:
    """Assert the properties that rules and verifiers require under every policy."""
    depths = [0]
    for node, parent in enumerate(draft.parents):
        assert 0 <= parent <= node
        depths.append(depths[parent] + 1)
    assert max(depths) <= config.max_depth
    for parent, number in Counter(draft.parents).items():
        assert number <= config.max_branches
        children = [node for node, above in enumerate(draft.parents) if above == parent]
        first = draft.proposals[children[0]]
        tokens = [draft.token_ids[node] for node in children]
        assert set(tokens) <= set(first.token_ids.tolist())
        assert siblings == "independent" or len(set(tokens)) == len(tokens)
        for node in children[1:]:
            assert np.array_equal(draft.proposals[node].token_ids, first.token_ids)
            assert np.array_equal(draft.proposals[node].probabilities, first.probabilities)


Q = {1: 0.5, 2: 0.3, 3: 0.15, 4: 0.05}


def skewed_graph() -> NgramGraph:
    """Return a graph in which Q follows 0, and every token of Q is followed by 0."""
    return graph_of([[token for successor, share in Q.items() for token in [0, successor] * round(400 * share)]], 1, 5)


def pairs_without_replacement() -> dict[tuple[int, int], float]:
    return {(one, two): Q[one] * Q[two] / (1 - Q[one]) for one, two in itertools.permutations(Q, 2)}


def pairs_independent() -> dict[tuple[int, int], float]:
    return {(one, two): Q[one] * Q[two] for one, two in itertools.product(Q, repeat=2)}


def p_value(drawn: Counter[tuple[int, int]], distribution: dict[tuple[int, int], float]) -> float:
    if drawn.keys() - distribution.keys():
        return 0.0
    observed = [drawn[pair] for pair in distribution]
    expected = [drawn.total() * probability for probability in distribution.values()]
    return float(stats.chisquare(observed, np.array(expected) * (sum(observed) / sum(expected))).pvalue)


def test_siblings_have_the_exact_distribution() -> None:
    graph = skewed_graph()
    drawn: dict[SiblingsName, Counter[tuple[int, int]]] = {name: Counter() for name in DRAWN}
    below: dict[SiblingsName, Counter[tuple[int, int]]] = {name: Counter() for name in DRAWN}
    generator = DraftGenerator(graph, DraftConfig())
    for name in DRAWN:
        for seed in range(4_000):
            draft = generator.draft(
                [0], 11, "sampling", seed, options=DraftOptions(siblings=name, max_branches=2, max_depth=3)
            )
            first, second = (node for node, parent in enumerate(draft.parents) if parent == 0)
            drawn[name][draft.token_ids[first], draft.token_ids[second]] += 1
            # Children of the first child's only child, which is 0 again.
            (middle,) = (node for node, parent in enumerate(draft.parents) if parent == first + 1)
            tokens = [draft.token_ids[node] for node, parent in enumerate(draft.parents) if parent == middle + 1]
            below[name][tokens[0], tokens[1]] += 1
    right = {"without-replacement": pairs_without_replacement(), "independent": pairs_independent()}
    for counts in (drawn, below):
        for name in DRAWN:
            (other,) = set(DRAWN) - {name}
            assert p_value(counts[name], right[name]) > 1e-3
            # Controls: the other kind of sampling and another order of siblings are detected.
            assert p_value(counts[name], right[other]) < 1e-6
        turned = Counter({(two, one): count for (one, two), count in counts["without-replacement"].items()})
        assert p_value(turned, right["without-replacement"]) < 1e-6


@pytest.mark.parametrize("siblings", ["none", *DRAWN])
@pytest.mark.parametrize("most", [1, 12, 13, 20])
def test_whether_a_node_is_there_is_decided_before_its_token_is_drawn(siblings: SiblingsName, most: int) -> None:
    """Reaching a limit must not remove a sampled token: the remaining tokens would no longer be samples of q."""
    wide = [token for other in range(4, 14) for token in (0, 1, other, 1)]  # 1 is followed by eleven tokens
    narrow = [token for _ in range(10) for token in (0, 2, 3, 3)]  # 2 and 3 by two
    drafter = SessionDrafter(graph_of([wide + narrow], 1, VOCABULARY_SIZE), DraftConfig(strategy="sampling"))
    drafter.open(1)
    drafter.accept(1, [0])
    options = DraftOptions(siblings=siblings, max_branches=3)
    follows: dict[tuple[tuple[int, int], ...], set[int | None]] = {}
    shapes, firsts = set(), Counter[int]()
    for seed in range(400):
        draft = draft_batch(drafter, [1], [6], [seed], options, max_support=most)[0]
        assert sum(len(q.token_ids) for q in draft.proposals) <= most
        nodes = list(zip(draft.token_ids, draft.parents, strict=True))
        for index in range(len(nodes) + 1):
            parent = nodes[index][1] if index < len(nodes) else None
            follows.setdefault(tuple(nodes[:index]), set()).add(parent)
        shapes.add(draft.parents)
        firsts.update(draft.token_ids[:1])
    assert all(len(parents) == 1 for parents in follows.values())
    assert most == 1 or 140 < firsts[1] < 260
    if most > 1:
        assert len(shapes) > 1, "or the limit was not reached by what was drawn"


def test_without_q_nothing_but_chains_is_drawn() -> None:
    drafter = SessionDrafter(skewed_graph(), DraftConfig(strategy="sampling"))
    drafter.open(1)
    drafter.accept(1, [0])
    for siblings in DRAWN:
        options = DraftOptions(omit_proposals=True, siblings=siblings)
        plain = DraftOptions(omit_proposals=True)
        for budget in (1, 9):
            [draft] = drafter.draft([SequenceStep(1, (), budget, 3)], options)
            assert draft.is_chain
            assert not draft.proposals
            assert draft == drafter.draft([SequenceStep(1, (), budget, 3)], plain)[0]
            assert draft_batch(drafter, [1], [budget], [3], options)[0].token_ids == draft.token_ids
