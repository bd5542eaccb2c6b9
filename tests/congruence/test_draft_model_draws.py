"""What rules emit from drafts that a draft model draws has the distribution of the target alone.

The joint distribution of the first tokens over many drafts, drawn by the real code from a world's q, tempered and cut.
Drafts with another q than they were drawn from are found out.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from congruence import test_lossless_rules as engine
from speculant_verifier.rules import RULES
from support.draft_models import drawn_by_world, model_drafter, noisy
from support.rule_worlds import World, run

MANY, FEW = 200_000, 10_000
LIKELY, IMPOSSIBLE = 1e-4, 1e-6
CASES = [
    ("token", "none", 1.0, 4), ("token", "none", 0.6, 2), ("block", "none", 1.0, 3), ("block", "none", 1.7, 2),
    ("tree-wor", "without-replacement", 1.0, 4), ("tree-wor", "without-replacement", 0.7, 3),
    ("tree-iid", "independent", 1.0, 4), ("tree-iid", "independent", 1.4, 3),
]  # fmt: skip


@cache
def world(kind="dense"):
    return World(3, kind)


def p_value(rule, siblings, temperature, most, count, change=lambda draft: draft):
    drafts = map(change, drawn_by_world(world(), count, siblings, temperature, most))
    return run(RULES[rule], world(), drafts, count, 3, 2).p_value


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "siblings", "temperature", "most"), CASES)
def test_draws(rule, siblings, temperature, most):
    assert p_value(rule, siblings, temperature, most, MANY) > LIKELY


@pytest.mark.parametrize(("rule", "siblings", "temperature", "most"), CASES[1::2])
def test_draws_briefly(rule, siblings, temperature, most):
    assert p_value(rule, siblings, temperature, most, FEW) > LIKELY


def _with_whole_q(draft):
    """What was drawn is said to come from the whole q, although it was drawn from what was cut."""
    contexts = [0]
    for token, parent in zip(draft.token_ids, draft.parents, strict=True):
        contexts.append(4 * contexts[parent] + 1 + token)
    return replace(draft, proposals=tuple(world().proposals[contexts[parent]] for parent in draft.parents))


def _without_improbable(draft):
    """Drafts are cut after they were drawn where a token has little probability."""
    kept = []
    for node, (token, proposal) in enumerate(zip(draft.token_ids, draft.proposals, strict=True)):
        q = float(proposal.probabilities[proposal.token_ids.searchsorted(token)])
        if q < 0.4:
            break
        kept.append(node)
    return draft.part(kept)


@pytest.mark.parametrize(
    ("rule", "siblings", "change"),
    [
        ("token", "none", _with_whole_q),
        pytest.param("block", "none", _with_whole_q, marks=pytest.mark.slow),
        pytest.param("tree-wor", "without-replacement", _with_whole_q, marks=pytest.mark.slow),
        pytest.param("tree-iid", "independent", _with_whole_q, marks=pytest.mark.slow),
        pytest.param("token", "none", _without_improbable, marks=pytest.mark.slow),
        ("block", "none", _without_improbable),
    ],
)
def test_wrong_drafts_are_found_out(rule, siblings, change):
    assert p_value(rule, siblings, 0.6, 2, 40_000, change) < IMPOSSIBLE


@pytest.mark.parametrize("rule", ["token", "block", "tree-wor", "tree-iid", "follow"])
@pytest.mark.parametrize("number", [engine.FEW, pytest.param(engine.MANY, marks=pytest.mark.slow)])
def test_joint_distribution_in_the_real_engine(rule, number):
    drafter = model_drafter(noisy(engine.target(), 0.3), budget=12, rows=64)
    outputs, accepted = engine.outputs_of(rule, drafter, number, 9 * 10**6, max_tokens=8, strategy="model")
    assert accepted > 1.0
    assert engine.p_value(outputs) > LIKELY
