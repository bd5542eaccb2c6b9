"""The distribution q that a drafted token was drawn from, and p seen through its support: what rules compute with.

Arrays are as long as the support; the rest of the vocabulary is one number, the mass of p beyond it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from speculant_graph.errors import GenerationError
from speculant_graph.types import Draft, TokenId
from speculant_verifier.rules.target import DraftTarget, TargetDistribution, UniformStream, Verdict

NEGLIGIBLE = 1e-9
"""Mass below which a remainder is what rounding left of nothing."""

_MASS_TOLERANCE = 1e-6
_NO_TOKENS = np.zeros(0, np.int64)
_NO_WEIGHTS = np.zeros(0)
_CERTAIN = np.ones(1)


@dataclass(frozen=True, slots=True)
class Drawn:
    """A drafted token and what it was drawn from."""

    token_ids: NDArray[np.int64]
    """Support of q, shape ``[s]``."""
    probabilities: NDArray[np.float64]
    """q, shape ``[s]``."""
    index: int
    """Where the drafted token lies in the support; its q is above 0."""


def drawn_from(draft: Draft, node: int) -> Drawn | None:
    """Return what a node's token was drawn from; None if the draft names none, or an impossible one."""
    if node >= len(draft.proposals):
        return None
    proposal = draft.proposals[node]
    token_ids = proposal.token_ids.astype(np.int64)
    index = int(token_ids.searchsorted(draft.token_ids[node]))
    if index == len(token_ids) or token_ids[index] != draft.token_ids[node] or not proposal.probabilities[index] > 0:
        return None
    return Drawn(token_ids, proposal.probabilities.astype(np.float64), index)


def certain(token_id: TokenId) -> Drawn:
    """Return the distribution of a token that was not drawn at all.

    Rules for chains take it for a token of unknown origin. Whatever chose the token, they stay exact: given the token,
    it is accepted with probability p, and otherwise p without it is drawn from.
    """
    return Drawn(np.array([token_id]), _CERTAIN, 0)


def seen_through(distribution: TargetDistribution, token_ids: NDArray[np.int64]) -> tuple[NDArray[np.float64], float]:
    """Return p of the tokens and the mass of all others.

    Raises:
        GenerationError: p is no distribution, as the model's scores were not finite.
    """
    probabilities = distribution.probabilities_of(token_ids)
    mass = float(probabilities.sum())
    if not -_MASS_TOLERANCE <= mass <= 1.0 + _MASS_TOLERANCE:  # written so that NaN fails
        raise GenerationError(
            f"the model's probabilities of {len(token_ids)} drafted tokens sum to {mass:.6g}, so its scores are not"
            " finite; check the weights, the number type and the logits processors"
        )
    return probabilities, max(1.0 - mass, 0.0)


def draw_from_rest(
    distribution: TargetDistribution,
    number: float,
    drawn: Drawn,
    weights: NDArray[np.float64],
    scale: float,
    mass: float,
) -> TokenId:
    """Draw from what a rejected token's q leaves of p.

    Args:
        distribution: p.
        number: in [0, 1).
        drawn: the rejected token, with its support.
        weights: what is left of the support, shape ``[s]``.
        scale: every other token weighs ``scale`` times p.
        mass: sum of all weights. Where only rounding can have rejected the token (p equal to q), there is none: then
            p without the token is drawn from, or p if there is no other token.
    """
    if mass > NEGLIGIBLE:
        return distribution.draw(number, drawn.token_ids, weights, scale)
    rejected = drawn.token_ids[drawn.index : drawn.index + 1]
    _, others = seen_through(distribution, rejected)
    if others > NEGLIGIBLE:
        return distribution.draw(number, rejected, np.zeros(1), 1.0)
    return distribution.draw(number, _NO_TOKENS, _NO_WEIGHTS, 1.0)


def own_token(target: DraftTarget, position: int, uniforms: UniformStream) -> TokenId:
    """Draw the model's own token after a node, which no draft is to be compared with."""
    return target.after(position).draw(uniforms(), _NO_TOKENS, _NO_WEIGHTS, 1.0)


def all_accepted(draft: Draft, target: DraftTarget, uniforms: UniformStream) -> Verdict:
    """Return the verdict on a chain that is accepted to its end: all of it, and one token of the model's own."""
    size = len(draft)
    return Verdict(tuple(range(size)), (*draft.token_ids, own_token(target, size, uniforms)))
