"""What a rule sees of the target model: its distribution after every node of a draft, looked at only where it must be.

A rule works on small arrays: the probabilities of the few tokens that a proposal names, and one draw. So it is the same
code whether the distribution lies on a GPU, on a CPU or in a test, and a sparse proposal never becomes as wide as the
vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from speculant_graph.types import TokenId

UniformStream = Callable[[], float]
"""Next number of the request's stream for rules, uniform in [0, 1). No number is ever given twice."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one row's pass yields."""

    path: tuple[int, ...]
    """Draft node indices that were accepted, root to leaf."""
    token_ids: tuple[TokenId, ...]
    """Tokens to emit: the accepted ones, then one of the model's own."""


class TargetDistribution(Protocol):
    """The target's distribution p of the token after one node, after the request's own processors.

    Normalised in float64: rules take what tokens do not hold as the mass of all others.
    """

    def probabilities_of(self, token_ids: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return p of the tokens, shape ``[s]``; NaN where the model's scores are not finite, which rules refuse."""

    def draw(self, number: float, token_ids: NDArray[np.int64], weights: NDArray[np.float64], scale: float) -> TokenId:
        """Draw by the inverse of the cumulative weights; never a token of weight 0.

        Args:
            number: in [0, 1).
            token_ids: tokens that have another weight than the others, shape ``[s]``, different from each other.
            weights: theirs, not negative, shape ``[s]``.
            scale: every other token weighs ``scale`` times p.

        Raises:
            GenerationError: p is not finite, or no token has a weight.
        """


class DraftTarget(Protocol):
    """The target model at the nodes of one draft. Node 0 is the root, j+1 the draft's node j."""

    def choice_after(self, node: int) -> TokenId:
        """Return the model's own choice after a node, made with the noise of that position.

        Raises:
            GenerationError: the model's scores are not finite.
        """

    def after(self, node: int) -> TargetDistribution:
        """Return the distribution after a node."""


def children_of(parents: Sequence[int]) -> list[list[int]]:
    """Return the children of the root and of every node, in the order of the draft: draft node indices."""
    children: list[list[int]] = [[] for _ in range(len(parents) + 1)]
    for node, parent in enumerate(parents):
        children[parent].append(node)
    return children
