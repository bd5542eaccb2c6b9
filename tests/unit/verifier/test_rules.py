"""Edge cases of the rules' drafts and probabilities. ``congruence/test_rules_exact.py`` tests their exactness."""

from __future__ import annotations

import itertools
import random
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speculant_graph.errors import GenerationError
from speculant_graph.types import Draft, Proposal, RuleName
from speculant_verifier.rules import RULES, WANTS_PROPOSALS
from speculant_verifier.service.service import RULE_OF_NUMBER
from speculant_verifier.suitability import FITTING
from support.rule_oracles import (
    DenseDistribution,
    DenseTarget,
    chain_of,
    proposal_of,
)

SIZE = 5


@st.composite
def rows(draw, of=SIZE):
    """A distribution: either multiples of 1/16 with many zeros, or arbitrary."""
    if draw(st.booleans()):
        counts = np.bincount(draw(st.lists(st.integers(0, of - 1), min_size=16, max_size=16)), minlength=of)
        return counts / 16
    weights = np.array(draw(st.lists(st.integers(0, 1000), min_size=of, max_size=of).filter(any)), np.float64)
    return weights / weights.sum()


def numbers_of(seed):
    return random.Random(seed).random


@st.composite
def chains(draw):
    """(draft, p of every node), with or without q."""
    size = draw(st.integers(0, 4))
    q = [draw(rows()).astype(np.float32) for _ in range(size)]
    p = [draw(rows()) for _ in range(size + 1)]
    for node in range(size):
        if draw(st.integers(0, 3)) == 0:
            p[node] = q[node].astype(np.float64)
    tokens = [draw(st.sampled_from(np.nonzero(row)[0].tolist())) for row in q]
    return chain_of(tokens, q if draw(st.integers(0, 3)) else None), p


@st.composite
def trees(draw, repeats):
    """(draft, p of every node); siblings share q and may repeat tokens."""
    q = [draw(rows()).astype(np.float32)]
    tokens, parents, proposals = [], [], []
    for position in itertools.count():
        if position > len(tokens) or len(tokens) >= 10:
            break
        support = np.nonzero(q[position])[0].tolist()
        children = draw(st.lists(st.sampled_from(support), min_size=position == 0, max_size=3, unique=not repeats))
        for token in children:
            tokens.append(token)
            parents.append(position)
            proposals.append(proposal_of(q[position]))
            q.append(draw(rows()).astype(np.float32))
    p = [row.astype(np.float64) if draw(st.integers(0, 3)) == 0 else draw(rows()) for row in q]
    return Draft(tuple(tokens), tuple(parents), proposals=tuple(proposals)), p


@settings(max_examples=60)
@given(st.booleans().flatmap(trees), st.lists(st.floats(0, 1, exclude_max=True), min_size=12, max_size=12))
def test_trees_are_followed_by_rules_for_chains_and_without_q(case, choice_numbers):
    draft, p = case

    def verdict(rule, draft):
        return RULES[rule](draft, DenseTarget(draft, p, choice_numbers), iter(()).__next__)  # they draw no number

    bare = Draft(draft.token_ids, draft.parents)
    followed = verdict("follow", draft)
    assert verdict("gumbel", draft) == verdict("tree-wor", bare) == verdict("tree-iid", bare) == followed
    if not draft.is_chain:
        assert verdict("token", draft) == verdict("block", draft) == followed
    first = verdict("nasd", draft)
    assert first.path == followed.path[: len(first.path)]
    assert first.token_ids == followed.token_ids[: len(first.token_ids)]


@pytest.mark.parametrize("rule", sorted(WANTS_PROPOSALS))
def test_a_token_without_probability_is_never_accepted_and_none_is_drawn(rule):
    q = np.float32([0.5, 0.5, 0, 0, 0])
    p = [np.array([0, 0.25, 0, 0.75, 0]), np.array([0, 0, 0, 0, 1.0])]
    for number in (0.0, 0.4, 1 - 2**-53):
        verdict = RULES[rule](chain_of([0], [q]), DenseTarget(chain_of([0]), p), lambda value=number: value)
        assert verdict.token_ids == (3,)


@pytest.mark.parametrize("rule", sorted(WANTS_PROPOSALS))
def test_rejected_by_rounding_alone(rule):
    """q sums to slightly more than p, so the token can be rejected although p - q has no mass."""
    number = iter([1 - 2**-53, 0.0, 0.0, 0.0]).__next__
    q = np.float32([0.5, 0.5 * (1 + 2**-20), 0, 0, 0])
    p = [np.array([0.5, 0.5, 0, 0, 0]), np.array([0, 0, 0, 0, 1.0])]
    verdict = RULES[rule](chain_of([1], [q]), DenseTarget(chain_of([1]), p), number)
    assert verdict.token_ids == (0,), "p without the rejected token"
    number = iter([1 - 2**-53, 0.0, 0.0, 0.0]).__next__
    q = np.float32([0, 1 + 2**-20, 0, 0, 0])
    p = [np.array([0, 1.0, 0, 0, 0]), np.array([0, 0, 0, 0, 1.0])]
    verdict = RULES[rule](chain_of([1], [q]), DenseTarget(chain_of([1]), p), number)
    assert verdict.token_ids == (1,), "nothing else is possible"


@pytest.mark.parametrize("rule", ["token", "block"])
@pytest.mark.parametrize("support", [[0, 2], [0, 3]])
def test_a_token_outside_of_its_own_q_is_taken_as_certain(rule, support):
    ruled_out = Proposal(np.array(support, np.uint32), np.float32([1, 0] if 2 in support else [0.5, 0.5]))
    draft = Draft((2, 4), (0, 1), proposals=(ruled_out, proposal_of([1, 0, 0, 0, 0])))
    p = [np.array([0.1, 0.1, 0.6, 0.1, 0.1])] * 3
    for seed in range(50):
        expected = RULES[rule](chain_of([2, 4]), DenseTarget(chain_of([2, 4]), p), numbers_of(seed))
        assert RULES[rule](draft, DenseTarget(draft, p), numbers_of(seed)) == expected


@pytest.mark.parametrize("rule", ["tree-wor", "tree-iid"])
@pytest.mark.parametrize("other", [[0.25, 0.75, 0, 0, 0], [0, 0.5, 0.5, 0, 0], [0.5, 0, 0.5, 0, 0]])
def test_siblings_of_different_q_are_followed(rule, other):
    draft = Draft((0, 1), (0, 0), proposals=(proposal_of([0.5, 0.5, 0, 0, 0]), proposal_of(other)))
    p = [np.array([0.3, 0.3, 0.4, 0, 0])] * 3
    verdict = RULES[rule](draft, DenseTarget(draft, p, [0.35, 0.9]), lambda: 0.9)
    assert verdict.path == (1,)
    assert verdict.token_ids == (1, 2)


@pytest.mark.parametrize("rule", sorted(WANTS_PROPOSALS))
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("node", [0, 1])
def test_scores_that_are_not_finite_are_an_error(rule, wrong, node):
    q = [np.float32([0.5, 0.5, 0, 0, 0])] * 2
    p = [np.array([0.5, 0.5, 0, 0, 0])] * 3
    p[node] = np.full(SIZE, wrong)
    draft = chain_of([0, 1], q)
    with pytest.raises(GenerationError) as caught:
        RULES[rule](draft, DenseTarget(draft, p), lambda: 0.25)
    assert caught.value.kind == "internal"


@settings(max_examples=60)
@given(st.one_of(chains(), st.booleans().flatmap(trees)), st.integers(0, 2**32))
def test_without_temperature_every_rule_emits_the_most_probable_tokens(case, seed):
    draft, p = case
    p = [np.eye(SIZE)[row.argmax()] for row in p]
    for rule in RULES.values():
        verdict = rule(draft, DenseTarget(draft, p, [0.5] * 12), numbers_of(seed))
        nodes = [0, *(node + 1 for node in verdict.path)]
        assert list(verdict.token_ids) == [p[node].argmax() for node in nodes]


def test_rules_see_no_more_than_the_support():
    """With a support of 3 among a million tokens, a rule neither requests nor builds an array of vocabulary size."""

    class Narrow(DenseDistribution):
        def probabilities_of(self, token_ids):
            assert len(token_ids) <= 3
            return super().probabilities_of(token_ids)

        def draw(self, number, token_ids, weights, scale):
            assert len(token_ids) <= 3
            return 7

    ids = np.array([5, 70_000, 999_999], np.uint32)
    row = Narrow(np.full(1_000_000, 1e-6))
    draft = Draft((5, 5), (0, 1), proposals=(Proposal(ids, np.float32([0.5, 0.25, 0.25])),) * 2)
    for rule in sorted(WANTS_PROPOSALS):
        assert RULES[rule](draft, DenseTarget(draft, [row] * 3), lambda: 0.5).token_ids == (7,)


def test_every_rule_has_its_line_in_every_table():
    assert set(get_args(RuleName)) == set(RULES) == set(FITTING) == set(RULE_OF_NUMBER.values())
