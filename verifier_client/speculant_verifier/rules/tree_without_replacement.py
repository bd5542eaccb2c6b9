"""*tree-wor*: trees whose siblings were drawn without replacement (Sequoia, Chen et al. 2024; RSD, Jeon et al. 2024).

A rejected token can't be drawn again, so the next sibling was drawn from q without it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from speculant_graph.types import Draft
from speculant_verifier.rules.siblings import walk
from speculant_verifier.rules.target import DraftTarget, UniformStream, Verdict


def tree_without_replacement(draft: Draft, target: DraftTarget, uniforms: UniformStream) -> Verdict:
    """Accept children drawn without replacement, in their order; see :func:`speculant_verifier.rules.siblings.walk`.

    A sibling that repeats a token is passed over. So siblings drawn independently are verified exactly, too: those of
    them that are new are a draw without replacement.
    """
    return walk(draft, target, uniforms, _without)


def _without(q: NDArray[np.float64], rejected: int) -> NDArray[np.float64]:
    left = q.copy()
    left[rejected] = 0.0
    mass = float(left.sum())
    return left / mass if mass > 0.0 else left
