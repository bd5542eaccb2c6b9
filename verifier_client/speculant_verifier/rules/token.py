"""*Token*: speculative sampling, token by token (Leviathan et al. 2023, Chen et al. 2023).

A drafted token x is accepted with probability min(1, p(x)/q(x)); after the first rejection a token is drawn from what
q leaves of p. A token that nothing is known of is taken as certain, q(x) = 1: accepted with probability p(x), else p
without x is drawn from.

The proof needs drafts that were not cut by looking at the token that was cut off: whether to shorten a draft is decided
before it is drawn, or after a token that is kept.
"""

from __future__ import annotations

import numpy as np

from speculant_graph.types import Draft
from speculant_verifier.rules.follow import follow
from speculant_verifier.rules.proposal import all_accepted, certain, draw_from_rest, drawn_from, seen_through
from speculant_verifier.rules.target import DraftTarget, UniformStream, Verdict


def token(draft: Draft, target: DraftTarget, uniforms: UniformStream) -> Verdict:
    """Accept drafted tokens one after another.

    Args:
        draft: a chain. A tree is followed instead: its first path need not be in the order of drawing.
        target: the model.
        uniforms: one number is taken for every token that is looked at, then one for the token of the model's own.

    Returns:
        The accepted part and one more token.

    Raises:
        GenerationError: the model's probabilities are not finite.
    """
    if not draft.is_chain:
        return follow(draft, target, uniforms)
    for node, token_id in enumerate(draft.token_ids):
        drawn = drawn_from(draft, node) or certain(token_id)
        distribution = target.after(node)
        p, rest = seen_through(distribution, drawn.token_ids)
        # Strictly below, so that a token of probability 0 is never accepted.
        if uniforms() * drawn.probabilities[drawn.index] < p[drawn.index]:
            continue
        weights = np.maximum(p - drawn.probabilities, 0.0)
        mass = rest + float(weights.sum())
        corrected = draw_from_rest(distribution, uniforms(), drawn, weights, 1.0, mass)
        return Verdict(tuple(range(node)), (*draft.token_ids[:node], corrected))
    return all_accepted(draft, target, uniforms)
