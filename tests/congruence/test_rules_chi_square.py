"""What rules emit has the distribution of the model alone; and rules that are known to be wrong are found out.

The joint distribution of the first tokens, over many drafts, against the exact one. All seeds are fixed.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from speculant_verifier.rules import RULES, Verdict
from support.rule_oracles import block_pass_probabilities, dense_rows, inverse_cumulative
from support.rule_worlds import World, chains, noise_of, run, trees

MANY, FEW = 200_000, 20_000
LIKELY, IMPOSSIBLE = 1e-4, 1e-6
OWN_TOKEN = (np.zeros(0, np.int64), np.zeros(0), 1.0)


@cache
def world(kind):
    return World(3, kind)


def p_value(rule, kind, drafts, count, length, **settings):
    return run(rule, world(kind), drafts, count, length, 2, **settings).p_value


CHAINS = [
    ("token", "certain", "dense"), ("token", "sampled", "dense"), ("token", "sampled", "sparse"),
    ("block", "certain", "dense"), ("block", "sampled", "dense"), ("block", "sampled", "sparse"),
    ("token", "sampled", "far sparse"), ("block", "sampled", "far"), ("block", "sampled", "far sparse"),
    ("nasd", "certain", "dense"), ("nasd", "unknown", "sparse"),
    ("follow", "unknown", "dense"), ("follow", "unknown", "sparse"),
]  # fmt: skip
TREES = [
    ("tree-wor", "without replacement", "dense"), ("tree-wor", "without replacement", "sparse"),
    ("tree-wor", "independent", "sparse"),
    ("tree-iid", "independent", "dense"), ("tree-iid", "independent", "sparse"),
    ("follow", "without replacement", "sparse"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("lengths", ["fixed", "random"])
@pytest.mark.parametrize(("rule", "how", "kind"), CHAINS)
def test_chains(rule, how, kind, lengths):
    assert p_value(RULES[rule], kind, chains(world(kind), MANY, 1, how, lengths), MANY, 4) > LIKELY


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("rule", ["token", "block"])
def test_chains_that_end_after_an_improbable_token(rule, kind):
    drafts = chains(world(kind), MANY, 1, "sampled", "stopping")
    assert p_value(RULES[rule], kind, drafts, MANY, 4) > LIKELY


@pytest.mark.slow
@pytest.mark.parametrize("lengths", ["fixed", "random"])
@pytest.mark.parametrize(("rule", "siblings", "kind"), TREES)
def test_trees(rule, siblings, kind, lengths):
    drafts = trees(world(kind), MANY, 1, siblings == "independent", lengths)
    assert p_value(RULES[rule], kind, drafts, MANY, 3) > LIKELY


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_gumbel(kind):
    """Drafter and model add the same noise."""
    noise = noise_of(MANY)
    for lengths in ("fixed", "random"):
        drafts = chains(world(kind), MANY, 1, "gumbel", lengths, noise=noise)
        assert p_value(RULES["gumbel"], kind, drafts, MANY, 4, noise=noise) > LIKELY


@pytest.mark.parametrize(("rule", "how"), [("token", "sampled"), ("block", "sampled"), ("nasd", "certain")])
def test_chains_briefly(rule, how):
    assert p_value(RULES[rule], "sparse", chains(world("sparse"), FEW, 4, how, "random"), FEW, 4) > LIKELY


@pytest.mark.parametrize("siblings", ["without replacement", "independent"])
def test_trees_briefly(siblings):
    rule = RULES["tree-iid" if siblings == "independent" else "tree-wor"]
    drafts = trees(world("sparse"), FEW, 4, siblings == "independent", "random")
    assert p_value(rule, "sparse", drafts, FEW, 3) > LIKELY


# Rules and drafters that are wrong.


def resampling(draft, target, numbers):
    """Token, but p itself is drawn from after a rejection."""
    verdict = RULES["token"](draft, target, numbers)
    size = len(verdict.path)
    if size < len(draft):
        own = target.after(size).draw(numbers(), *OWN_TOKEN)
        return Verdict(verdict.path, (*verdict.token_ids[:size], own))
    return verdict


def drawing_again(draft, target, numbers):
    """NASD with a fresh draw after a mismatch."""
    verdict = RULES["nasd"](draft, target, numbers)
    size = len(verdict.path)
    if size < len(draft):
        own = target.after(size).draw(numbers(), *OWN_TOKEN)
        return Verdict(verdict.path, (*verdict.token_ids[:size], own))
    return verdict


def block_with_the_remainder_of_token(draft, target, numbers):
    """Block accepts, but what is left is max(p - q, 0)."""
    p = [target.world.p[context] for context in target.contexts]
    length = 0
    for size, passing in enumerate(block_pass_probabilities(draft, p), 1):
        if numbers() < passing:
            length = size
    weights = p[length]
    if length < len(draft):
        left = np.maximum(p[length] - dense_rows(draft, len(p[0]))[length], 0)
        weights = left if left.sum() > 1e-9 else weights
    own = inverse_cumulative(weights, numbers())
    return Verdict(tuple(range(length)), (*draft.token_ids[:length], own))


def token_with_the_lengths_of_block(draft, target, numbers):
    """Every token is tried by itself, and the longest part whose last token passes is accepted."""
    p = [target.world.p[context] for context in target.contexts]
    q = dense_rows(draft, len(p[0]))
    length = 0
    for size, token in enumerate(draft.token_ids, 1):
        if numbers() * q[size - 1][token] < p[size - 1][token]:
            length = size
    left = p[length] if length == len(draft) else np.maximum(p[length] - q[length], 0)
    own = inverse_cumulative(left if left.sum() > 1e-9 else p[length], numbers())
    return Verdict(tuple(range(length)), (*draft.token_ids[:length], own))


CONTROLS = [
    (resampling, "sampled", "sparse", 0.0),
    (resampling, "certain", "dense", 0.0),
    (RULES["token"], "sampled", "sparse", 0.3),
    (RULES["block"], "sampled", "sparse", 0.3),
    (drawing_again, "certain", "dense", 0.0),
    (block_with_the_remainder_of_token, "sampled", "far", 0.0),
    (token_with_the_lengths_of_block, "sampled", "far", 0.0),
]


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "how", "kind", "trim_below"), CONTROLS)
def test_wrong_chains_are_found_out(rule, how, kind, trim_below):
    drafts = chains(world(kind), MANY, 1, how, "fixed", trim_below)
    assert p_value(rule, kind, drafts, MANY, 4) < IMPOSSIBLE


@pytest.mark.slow
@pytest.mark.parametrize("lengths", ["fixed", "random"])
def test_multi_step_over_siblings_without_replacement_is_found_out(lengths):
    drafts = trees(world("sparse"), MANY, 1, False, lengths)
    assert p_value(RULES["tree-iid"], "sparse", drafts, MANY, 3) < IMPOSSIBLE


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["token", "block"])
def test_numbers_used_again_are_found_out(rule):
    drafts = chains(world("dense"), MANY, 1, "sampled", "fixed")
    assert p_value(RULES[rule], "dense", drafts, MANY, 4, reuse=True) < IMPOSSIBLE


def test_wrong_rules_are_found_out_briefly():
    for rule in (resampling, drawing_again):
        drafts = chains(world("dense"), FEW, 4, "certain", "fixed")
        assert p_value(rule, "dense", drafts, FEW, 4) < IMPOSSIBLE
