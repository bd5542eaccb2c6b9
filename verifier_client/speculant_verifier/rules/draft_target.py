"""A rule's interface to the target model: its distribution after every node of a draft, computed on demand.

A rule works on small arrays: the probabilities of the tokens in the support of q, and the total mass of p outside it.
The same code therefore serves a GPU, a CPU and tests, and never expands a sparse proposal to the whole vocabulary.
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
"""Function that returns the next number of the request's random stream for rules, uniform in [0, 1). No number of the
stream is used twice."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of verifying the draft of one row."""

    path: tuple[int, ...]
    """Indices of the accepted draft nodes, root to leaf."""
    token_ids: tuple[TokenId, ...]
    """Tokens to emit: the accepted tokens, then one token that the target chose."""


class TargetDistribution(Protocol):
    """The target's next-token distribution p after one node, with the request's logits processors applied.

    The probabilities are normalised in float64, because rules compute the mass of all other tokens as 1 minus a sum.
    """

    def probabilities_of(self, token_ids: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return p of the tokens, shape ``[s]``; if the model's scores are not finite, p is NaN, which rules reject."""

    def draw(self, number: float, token_ids: NDArray[np.int64], weights: NDArray[np.float64], scale: float) -> TokenId:
        """Sample a token by inverting the cumulative weights; a token of weight 0 is never sampled.

        Args:
            number: random number in [0, 1).
            token_ids: distinct tokens with explicit weights, shape ``[s]``.
            weights: weights of ``token_ids``, not negative, shape ``[s]``.
            scale: factor for tokens without an explicit weight: their weight is ``scale`` times p.

        Raises:
            GenerationError: p is not finite, or no token has a weight.
        """


class DraftTarget(Protocol):
    """The target model at the positions of one draft: position 0 is at the root, and position j + 1 is at node j.

    The target's choice at a position is the token that follows the node at this position. On a chain, ``after(j)``
    therefore gives the distribution that verifies node j.
    """

    def choice_after(self, position: int) -> TokenId:
        """Return the target's token at a position, chosen with the noise of that sequence position.

        Raises:
            GenerationError: the model's scores are not finite.
        """

    def after(self, position: int) -> TargetDistribution:
        """Return the target's next-token distribution at a position."""


def children_of(parents: Sequence[int]) -> list[list[int]]:
    """Return the children of the root and of every node, as node indices in draft order."""
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
    """Return q at a node; None if the draft has no q there, or if q excludes the drafted token."""
    if node >= len(draft.proposals):
        return None
    proposal = draft.proposals[node]
    token_ids = proposal.token_ids.astype(np.int64)
    index = int(token_ids.searchsorted(draft.token_ids[node]))
    if index == len(token_ids) or token_ids[index] != draft.token_ids[node] or not proposal.probabilities[index] > 0:
        return None
    return Drawn(token_ids, proposal.probabilities.astype(np.float64), index)


def point_mass(token_id: TokenId) -> Drawn:
    """Return a point mass as the q of a token that was not sampled.

    Chain rules use the point mass as the q of a token without q. Whatever the source of the token, chain rules remain
    lossless: they accept it with probability p, and otherwise sample from p without this token.
    """
    return Drawn(np.array([token_id]), _CERTAIN, 0)


def target_mass(distribution: TargetDistribution, token_ids: NDArray[np.int64]) -> tuple[NDArray[np.float64], float]:
    """Return the target's probabilities p of the tokens, and the total mass of all other tokens.

    Raises:
        GenerationError: p is not a distribution, because the model's scores are not finite.
    """
    probabilities = distribution.probabilities_of(token_ids)
    mass = float(probabilities.sum())
    if not -_MASS_TOLERANCE <= mass <= 1.0 + _MASS_TOLERANCE:  # written so that NaN fails
        raise GenerationError(
            f"the model's probabilities of {len(token_ids)} drafted tokens sum to {mass:.6g}, so its scores are not"
            " finite; check the weights, the data type and the logits processors"
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
    """Sample from the residual of p after a rejection.

    Args:
        distribution: p.
        number: random number in [0, 1).
        drawn: the rejected token and its q.
        weights: residual weights of the support, shape ``[s]``.
        scale: factor for tokens without an explicit weight: their weight is ``scale`` times p.
        mass: sum of all weights. The mass is 0 only if p equals q and rounding rejected the token. If the mass is 0,
            the result is sampled from p without the rejected token, or from p if there is no other token.
    """
    if mass > NEGLIGIBLE:
        return distribution.draw(number, drawn.token_ids, weights, scale)
    rejected = drawn.token_ids[drawn.index : drawn.index + 1]
    _, others = target_mass(distribution, rejected)
    if others > NEGLIGIBLE:
        return distribution.draw(number, rejected, np.zeros(1), 1.0)
    return distribution.draw(number, _NO_TOKENS, _NO_WEIGHTS, 1.0)


def own_token(target: DraftTarget, position: int, uniforms: UniformStream) -> TokenId:
    """Sample the target's token at a position, without comparing it with a draft."""
    return target.after(position).draw(uniforms(), _NO_TOKENS, _NO_WEIGHTS, 1.0)


def all_accepted(draft: Draft, target: DraftTarget, uniforms: UniformStream) -> Verdict:
    """Return the verdict on a fully accepted chain: its tokens, and one bonus token from the target."""
    size = len(draft)
    return Verdict(tuple(range(size)), (*draft.token_ids, own_token(target, size, uniforms)))
