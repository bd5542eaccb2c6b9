"""A rule's interface to the target model: its distribution after every node of a draft, computed on demand.

A rule works on small arrays: the probabilities of the few tokens in a proposal, and one draw. So the same code runs for
distributions on a GPU, on a CPU or in a test, and a sparse proposal never becomes as wide as the vocabulary: arrays are
as long as q's support, and the rest is one number, the mass of p outside the support.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from speculant_graph.errors import GenerationError
from speculant_graph.types import Draft, TokenId

UniformStream = Callable[[], float]
"""Next number of the request's stream for rules, uniform in [0, 1). No number is returned twice."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of one row's pass."""

    path: tuple[int, ...]
    """Indices of accepted draft nodes, root to leaf."""
    token_ids: tuple[TokenId, ...]
    """Tokens to emit: the accepted ones, then one of the model's own tokens."""


class TargetDistribution(Protocol):
    """The target's distribution p of the token after one node, after the request's own processors.

    Normalised in float64, because rules compute the mass of all other tokens as the rest.
    """

    def probabilities_of(self, token_ids: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return p of the tokens, shape ``[s]``; NaN if the model's scores are not finite, which rules refuse."""

    def draw(self, number: float, token_ids: NDArray[np.int64], weights: NDArray[np.float64], scale: float) -> TokenId:
        """Draw by the inverse of the cumulative weights; never a token of weight 0.

        Args:
            number: in [0, 1).
            token_ids: distinct tokens with their own weights, shape ``[s]``.
            weights: their weights, not negative, shape ``[s]``.
            scale: every other token has the weight ``scale`` times p.

        Raises:
            GenerationError: p is not finite, or no token has a weight.
        """


class DraftTarget(Protocol):
    """The target model at the positions of one draft: 0 is its root, j + 1 comes after its node j.

    So ``after(j)`` is the distribution that decides on node j of a chain.
    """

    def choice_after(self, position: int) -> TokenId:
        """Return the model's own choice there, made with the noise of that position in the sequence.

        Raises:
            GenerationError: the model's scores are not finite.
        """

    def after(self, position: int) -> TargetDistribution:
        """Return the model's distribution there."""


def children_of(parents: Sequence[int]) -> list[list[int]]:
    """Return the children of the root and of every node, in the order of the draft: draft node indices."""
    children: list[list[int]] = [[] for _ in range(len(parents) + 1)]
    for node, parent in enumerate(parents):
        children[parent].append(node)
    return children


NEGLIGIBLE = 1e-9
"""Mass below which a residual counts as rounding error."""

_MASS_TOLERANCE = 1e-6
_NO_TOKENS = np.zeros(0, np.int64)
_NO_WEIGHTS = np.zeros(0)
_CERTAIN = np.ones(1)


@dataclass(frozen=True, slots=True)
class Drawn:
    """A drafted token and its distribution q."""

    token_ids: NDArray[np.int64]
    """Support of q, shape ``[s]``."""
    probabilities: NDArray[np.float64]
    """q, shape ``[s]``."""
    index: int
    """Index of the drafted token in the support; its q is above 0."""


def drawn_from(draft: Draft, node: int) -> Drawn | None:
    """Return the distribution of a node's token; None if the draft has none, or an impossible one."""
    if node >= len(draft.proposals):
        return None
    proposal = draft.proposals[node]
    token_ids = proposal.token_ids.astype(np.int64)
    index = int(token_ids.searchsorted(draft.token_ids[node]))
    if index == len(token_ids) or token_ids[index] != draft.token_ids[node] or not proposal.probabilities[index] > 0:
        return None
    return Drawn(token_ids, proposal.probabilities.astype(np.float64), index)


def point_mass(token_id: TokenId) -> Drawn:
    """Return the point mass of a token that was not drawn.

    Rules for chains use it for a token without q. They stay exact for any origin of the token: it is accepted with
    probability p, and otherwise a token is drawn from p without it.
    """
    return Drawn(np.array([token_id]), _CERTAIN, 0)


def target_mass(distribution: TargetDistribution, token_ids: NDArray[np.int64]) -> tuple[NDArray[np.float64], float]:
    """Return p of the tokens and the mass of all others.

    Raises:
        GenerationError: p is not a distribution, because the model's scores are not finite.
    """
    probabilities = distribution.probabilities_of(token_ids)
    mass = float(probabilities.sum())
    if not -_MASS_TOLERANCE <= mass <= 1.0 + _MASS_TOLERANCE:  # written so that NaN fails
        raise GenerationError(
            f"the model's probabilities of {len(token_ids)} drafted tokens sum to {mass:.6g}, so its scores are not"
            " finite; check the weights, the number type and the logits processors"
        )
    return probabilities, max(1.0 - mass, 0.0)


def sample_residual(
    distribution: TargetDistribution,
    number: float,
    drawn: Drawn,
    weights: NDArray[np.float64],
    scale: float,
    mass: float,
) -> TokenId:
    """Draw from the residual of p after a rejected token's q.

    Args:
        distribution: p.
        number: in [0, 1).
        drawn: the rejected token, with its support.
        weights: residual weights of the support, shape ``[s]``.
        scale: every other token has the weight ``scale`` times p.
        mass: sum of all weights. It is 0 if only rounding can have rejected the token (p equal to q): then the draw is
            from p without the token, or from p if there is no other token.
    """
    if mass > NEGLIGIBLE:
        return distribution.draw(number, drawn.token_ids, weights, scale)
    rejected = drawn.token_ids[drawn.index : drawn.index + 1]
    _, others = target_mass(distribution, rejected)
    if others > NEGLIGIBLE:
        return distribution.draw(number, rejected, np.zeros(1), 1.0)
    return distribution.draw(number, _NO_TOKENS, _NO_WEIGHTS, 1.0)


def own_token(target: DraftTarget, position: int, uniforms: UniformStream) -> TokenId:
    """Draw the model's own token after a node, without comparing it with a draft."""
    return target.after(position).draw(uniforms(), _NO_TOKENS, _NO_WEIGHTS, 1.0)


def all_accepted(draft: Draft, target: DraftTarget, uniforms: UniformStream) -> Verdict:
    """Return the verdict on a completely accepted chain: all of it, and one of the model's own tokens."""
    size = len(draft)
    return Verdict(tuple(range(size)), (*draft.token_ids, own_token(target, size, uniforms)))
