"""Drafts that a draft model draws are draws from the q that comes with them, which is the model's, tempered and cut.

The drawing code over a small world in the model's place; and what rules emit from such drafts in the real engine.
"""

from __future__ import annotations

from collections import Counter
from functools import cache

import numpy as np
import pytest
from scipy.stats import chisquare

from congruence import test_lossless_rules as engine
from speculant_verifier.draft_model.drawing import DrawOrder, draw_drafts, shape_of
from speculant_verifier.draft_model.passes import CachedSequence, TopRows
from support.draft_models import model_drafter, noisy

SIZE, NUM_DRAFTS = 4, 5_000
LIKELY, IMPOSSIBLE = 1e-4, 1e-6


@cache
def q_after(context):
    return np.random.default_rng(list(context)).dirichlet(np.full(SIZE, 0.8))


class Passes:
    """What :class:`DraftPasses` does, where the world says what the model holds likely."""

    def __init__(self):
        self.contexts = {}

    def run(self, sequences, nodes, width):
        rows = []
        for sequence, new in zip(sequences, nodes, strict=True):
            contexts = self.contexts.setdefault(id(sequence), [()])
            first = len(contexts) if sequence.is_written else 0
            for parent, token in new:
                contexts.append((*contexts[parent], token))
                sequence.tokens.append(token)
            sequence.is_written = True
            q = np.array([q_after(context) for context in contexts[first:]])
            ids = np.argsort(-q, axis=1, kind="stable")
            rows.append(TopRows(ids, np.log(np.take_along_axis(q, ids, 1))))
        return rows


def tempered(context, temperature, most):
    """Return what should be drawn from: a power of q, of its most probable tokens alone."""
    weights = q_after(context) ** (1 / temperature)
    weights[np.argsort(-weights)[most:]] = 0
    return weights / weights.sum()


def likelihood(tokens, parents, siblings, temperature, most):
    """Return the probability of a draft's tokens, each drawn from what its older siblings leave."""
    contexts, probability = [()], 1.0
    for node, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
        q = tempered(contexts[parent], temperature, most)
        if siblings == "without-replacement":
            q[[tokens[older] for older in range(node) if parents[older] == parent]] = 0
        probability *= q[token] / q.sum()
        contexts.append((*contexts[parent], token))
    return probability


@pytest.mark.parametrize(("temperature", "most"), [(1.0, 4), (0.6, 3), (1.7, 2)])
@pytest.mark.parametrize("siblings", ["none", "without-replacement", "independent"])
def test_draws(siblings, temperature, most):
    shape = shape_of(siblings, 3, 3 if siblings == "none" else 2, 2)
    orders = [DrawOrder(CachedSequence(0), 0, seed, siblings, shape, temperature, most) for seed in range(NUM_DRAFTS)]
    drafts = draw_drafts(Passes(), orders)
    seen = Counter(draft.token_ids for draft in drafts)
    drawn, expected, without_temperature = [], [], []
    for tokens in np.ndindex(*[SIZE] * len(shape)):
        drawn.append(seen[tokens])
        expected.append(likelihood(tokens, shape, siblings, temperature, most))
        without_temperature.append(likelihood(tokens, shape, siblings, 1.0, SIZE))
    assert sum(drawn) == NUM_DRAFTS
    assert p_value(drawn, expected) > LIKELY
    if temperature != 1.0:
        assert p_value(drawn, without_temperature) < IMPOSSIBLE
    for draft in drafts[:50]:
        contexts = [()]
        for token, parent, proposal in zip(draft.token_ids, draft.parents, draft.proposals, strict=True):
            q = np.zeros(SIZE)
            q[proposal.token_ids] = proposal.probabilities
            assert q == pytest.approx(tempered(contexts[parent], temperature, most), abs=1e-6)
            contexts.append((*contexts[parent], token))


def p_value(observed, probabilities):
    """Chi-square, with the rarest cells taken together; 0 if anything impossible was seen."""
    observed, expected = np.array(observed), NUM_DRAFTS * np.array(probabilities)
    if observed[expected == 0].any():
        return 0.0
    rare = expected < 5
    cells = [*zip(observed[~rare], expected[~rare], strict=True), (observed[rare].sum(), expected[rare].sum())]
    observed, expected = np.array([cell for cell in cells if cell[1] > 0]).T
    return float(chisquare(observed, expected * observed.sum() / expected.sum()).pvalue)


@pytest.mark.parametrize(
    ("rule", "number"),
    [
        ("block", engine.FEW), ("tree-wor", engine.FEW),
        *(pytest.param(rule, engine.MANY, marks=pytest.mark.slow) for rule in ("token", "block", "tree-wor")),
        pytest.param("tree-iid", engine.MANY, marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_joint_distribution_in_the_real_engine(rule, number):
    drafter = model_drafter(noisy(engine.target(), 0.3), budget=12, rows=64)
    outputs, accepted = engine.outputs_of(rule, drafter, number, 9 * 10**6, max_tokens=8, strategy="model")
    assert accepted > 1.0
    assert engine.p_value(outputs) > LIKELY
