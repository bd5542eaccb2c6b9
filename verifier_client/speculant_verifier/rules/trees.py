"""Rules for sampled trees: rejection sampling over the children of a node, one by one.

After a rejection, the normalised residual max(p - q, 0) replaces p, and the next child is tested. The rules differ in
the q of the next child:

- *tree-wor*: siblings were sampled without replacement (Sequoia, Chen et al. 2024; RSD, Jeon et al. 2024). A rejected
  token can't be sampled again, so the next sibling was sampled from q without this token.
- *tree-iid*: siblings were sampled independently from one q (SpecInfer's multi-step sampling, Miao et al. 2023).
  Siblings may repeat a token, which wastes nodes, so *tree-wor* is preferable above width 2. For siblings that were
  sampled without replacement, *tree-iid* would accept too often.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from speculant_graph.types import Draft, TokenId
from speculant_verifier.rules.draft_target import (
    NEGLIGIBLE,
    DraftTarget,
    Drawn,
    UniformStream,
    Verdict,
    children_of,
    drawn_from,
    own_token,
    sample_residual,
    target_mass,
)
from speculant_verifier.rules.follow import follow

NextProposal = Callable[[NDArray[np.float64], int], NDArray[np.float64]]
"""Function that takes q and the index of a rejected token in the support of q, and returns the q of the next
sibling."""


def tree_independent(draft: Draft, target: DraftTarget, uniforms: UniformStream) -> Verdict:
    """Accept independently sampled children, in order; see :func:`_walk`."""
    return _walk(draft, target, uniforms, lambda q, _: q)


def tree_without_replacement(draft: Draft, target: DraftTarget, uniforms: UniformStream) -> Verdict:
    """Accept children sampled without replacement, in order; see :func:`_walk`.

    A sibling that repeats a token is skipped. The rule is therefore also lossless for independently sampled siblings:
    without repetitions, they are a sample without replacement.
    """
    return _walk(draft, target, uniforms, _without)


def _without(q: NDArray[np.float64], rejected: int) -> NDArray[np.float64]:
    left = q.copy()
    left[rejected] = 0.0
    mass = float(left.sum())
    return left / mass if mass > 0.0 else left


def _walk(draft: Draft, target: DraftTarget, uniforms: UniformStream, next_proposal: NextProposal) -> Verdict:
    """Accept one child per node, until a node has no children or all of them are rejected.

    Args:
        draft: a tree in which the children of a node are in sampling order, all with the q from which the first child
            was sampled. Drafts without proposals, and children without a common q, are verified with *follow* instead.
        target: the model.
        uniforms: stream of random numbers in [0, 1): one per tested child, and one for the target's token.
        next_proposal: function that updates q after a rejection. Children of probability 0 under the new q are skipped.

    Returns:
        The accepted path, and one more token from the target.

    Raises:
        GenerationError: the model's probabilities are not finite.
    """
    if not draft.proposals:
        return follow(draft, target, uniforms)
    children = children_of(draft.parents)
    path: list[int] = []
    token_ids: list[TokenId] = []
    position = 0
    while siblings := children[position]:
        drawn = _drawn_from_the_same(draft, siblings)
        if drawn is None:
            token_id = target.choice_after(position)
            node = next((node for node in siblings if draft.token_ids[node] == token_id), None)
        else:
            node, token_id = _choose(siblings, drawn, target, position, uniforms, next_proposal)
        token_ids.append(token_id)
        if node is None:
            return Verdict(tuple(path), tuple(token_ids))
        path.append(node)
        position = node + 1
    token_ids.append(own_token(target, position, uniforms))
    return Verdict(tuple(path), tuple(token_ids))


def _choose(
    siblings: Sequence[int],
    drawn: Sequence[Drawn],
    target: DraftTarget,
    position: int,
    uniforms: UniformStream,
    next_proposal: NextProposal,
) -> tuple[int | None, TokenId]:
    """Return the accepted child and its token, or None and a token from the residual."""
    distribution = target.after(position)
    support, q = drawn[0].token_ids, drawn[0].probabilities
    weights, rest = target_mass(distribution, support)
    scale = 1.0
    for node, child in zip(siblings, drawn, strict=True):
        if not q[child.index] > 0.0:
            continue
        # Strictly below, so that a token of probability 0 is never accepted.
        if uniforms() * q[child.index] < weights[child.index]:
            return node, int(support[child.index])
        weights = np.maximum(weights - q, 0.0)
        mass = scale * rest + float(weights.sum())
        if mass <= NEGLIGIBLE:
            return None, sample_residual(distribution, uniforms(), child, weights, scale, mass)
        weights, scale = weights / mass, scale / mass
        q = next_proposal(q, child.index)
    return None, distribution.draw(uniforms(), support, weights, scale)


def _drawn_from_the_same(draft: Draft, siblings: Sequence[int]) -> list[Drawn] | None:
    """Return every child with its q; None if a child has no q, or if the q of two children differ."""
    first = drawn_from(draft, siblings[0])
    if first is None:
        return None
    drawn = [first]
    for node in siblings[1:]:
        child = drawn_from(draft, node)
        if (
            child is None
            or not np.array_equal(child.token_ids, first.token_ids)
            or not np.array_equal(child.probabilities, first.probabilities)
        ):
            return None
        drawn.append(child)
    return drawn
