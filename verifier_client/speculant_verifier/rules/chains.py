"""Rules for chains sampled from the draft distribution q. If a token has no q, a point mass is assumed: q(x) = 1.

*Token* is speculative sampling, token by token (Leviathan et al. 2023, Chen et al. 2023). A drafted token x is accepted
with probability min(1, p(x)/q(x)); after the first rejection, the next token is sampled from the normalised residual
max(p - q, 0).

*Block* is block verification (Sun et al. 2024, arXiv 2403.10444). In expectation, *block* accepts at least as many
tokens as *token*. *Block* verifies the whole draft jointly: earlier tokens may compensate for a token with p(x) < q(x).
With ``a[0] = 1`` and ``a[i] = min(1, a[i-1] p(x[i])/q(x[i]))``, the residual after i tokens is ``max(a[i] p - q, 0)``
with mass ``s[i]``. Length i is accepted with probability ``s[i] / (s[i] + 1 - a[i])``; the full length is accepted with
probability ``a[i]``. The rule takes the longest accepted length i, and samples the next token from the residual after i
tokens. *Block* tests every length, because a longer length may be accepted after a shorter one was rejected.

The proofs that *token* and *block* are lossless require that the draft length does not depend on a token that was cut
off. A drafter must therefore decide to stop before it samples the next token, or after a token that it keeps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from speculant_graph.types import Draft
from speculant_verifier.rules.draft_target import (
    DraftTarget,
    Drawn,
    TargetDistribution,
    UniformStream,
    Verdict,
    all_accepted,
    drawn_from,
    point_mass,
    sample_residual,
    target_mass,
)
from speculant_verifier.rules.follow import follow


def token(draft: Draft, target: DraftTarget, uniforms: UniformStream) -> Verdict:
    """Accept drafted tokens one by one.

    Args:
        draft: a chain. A tree is verified with *follow* instead, because its first path may not be in sampling order.
        target: the model.
        uniforms: stream of random numbers in [0, 1): one per tested token, then one for the target's token.

    Returns:
        The accepted part of the draft, and one more token from the target.

    Raises:
        GenerationError: the model's probabilities are not finite.
    """
    if not draft.is_chain:
        return follow(draft, target, uniforms)
    for node, token_id in enumerate(draft.token_ids):
        drawn = drawn_from(draft, node) or point_mass(token_id)
        distribution = target.after(node)
        p, rest = target_mass(distribution, drawn.token_ids)
        # Strictly below, so that a token of probability 0 is never accepted.
        if uniforms() * drawn.probabilities[drawn.index] < p[drawn.index]:
            continue
        weights = np.maximum(p - drawn.probabilities, 0.0)
        mass = rest + float(weights.sum())
        corrected = sample_residual(distribution, uniforms(), drawn, weights, 1.0, mass)
        return Verdict(tuple(range(node)), (*draft.token_ids[:node], corrected))
    return all_accepted(draft, target, uniforms)


@dataclass(frozen=True, slots=True)
class _Remainder:
    """The residual of p if exactly the first ``length`` tokens are accepted."""

    length: int
    distribution: TargetDistribution
    drawn: Drawn
    ratio: float
    weights: NDArray[np.float64]
    mass: float
    next_ratio: float

    def passes(self, number: float) -> bool:
        """Return whether block verification accepts this length."""
        total = self.mass + 1.0 - self.ratio
        return not total > 0.0 or number * total < self.mass


def block(draft: Draft, target: DraftTarget, uniforms: UniformStream) -> Verdict:
    """Accept the longest prefix of a chain that passes verification.

    Args:
        draft: a chain. A tree is verified with *follow* instead, because its first path may not be in sampling order.
        target: the model.
        uniforms: stream of random numbers in [0, 1): one per length above 0 that can be accepted, shortest first, then
            one for the target's token.

    Returns:
        The accepted part of the draft, and one more token from the target.

    Raises:
        GenerationError: the model's probabilities are not finite.
    """
    if not draft.is_chain:
        return follow(draft, target, uniforms)
    size = len(draft)
    if size == 0:
        return all_accepted(draft, target, uniforms)
    longest = latest = _remainder(draft, target, 0, 1.0)
    for length in range(1, size):
        if latest.next_ratio == 0.0:
            break  # neither this length nor a longer one can be accepted
        latest = _remainder(draft, target, length, latest.next_ratio)
        if latest.passes(uniforms()):
            longest = latest
    if latest.next_ratio > 0.0 and uniforms() < latest.next_ratio:
        return all_accepted(draft, target, uniforms)
    corrected = sample_residual(
        longest.distribution, uniforms(), longest.drawn, longest.weights, longest.ratio, longest.mass
    )
    return Verdict(tuple(range(longest.length)), (*draft.token_ids[: longest.length], corrected))


def _remainder(draft: Draft, target: DraftTarget, length: int, ratio: float) -> _Remainder:
    drawn = drawn_from(draft, length) or point_mass(draft.token_ids[length])
    distribution = target.after(length)
    p, rest = target_mass(distribution, drawn.token_ids)
    weights = np.maximum(ratio * p - drawn.probabilities, 0.0)
    mass = ratio * rest + float(weights.sum())
    next_ratio = min(1.0, ratio * float(p[drawn.index]) / float(drawn.probabilities[drawn.index]))
    return _Remainder(length, distribution, drawn, ratio, weights, mass, next_ratio)
