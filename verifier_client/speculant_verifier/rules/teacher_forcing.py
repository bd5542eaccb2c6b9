"""Teacher forcing: a model runs as usual but outputs a given text, for benchmarks and scripted models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from speculant_graph.types import TokenId
from speculant_verifier.rules.draft_target import DraftTarget, TargetDistribution

TargetWrapper = Callable[[DraftTarget, int, Sequence[int]], DraftTarget]
"""Function that takes the target of one pass, the number of tokens emitted before the pass, and the depth of every
node, the root first. The function returns a target that makes the forced choices."""


def teacher_forced(token_ids: Sequence[TokenId]) -> TargetWrapper:
    """Return a wrapper that makes a model output the given tokens and then choose freely."""
    return partial(_forced, tuple(token_ids))


def _forced(
    token_ids: tuple[TokenId, ...], target: DraftTarget, num_emitted: int, depths: Sequence[int]
) -> DraftTarget:
    return TeacherForcedTarget(token_ids[num_emitted:], depths, target)


class TeacherForcedTarget:
    """Target whose token choices are given in advance."""

    def __init__(self, token_ids: Sequence[TokenId], depths: Sequence[int], target: DraftTarget | None = None) -> None:
        """Set the choices.

        Args:
            token_ids: the given tokens that are not emitted yet.
            depths: depth of every node, the root first.
            target: the model, which computes a choice at every position; its choices count only after the last given
                token; None for no model.
        """
        self._token_ids, self._depths, self._target = token_ids, depths, target

    def choice_after(self, position: int) -> TokenId:
        """Return the given token at a position; see :class:`DraftTarget`."""
        depth = self._depths[position]
        if self._target is None:
            return self._token_ids[depth]
        chosen = self._target.choice_after(position)
        return self._token_ids[depth] if depth < len(self._token_ids) else chosen

    def after(self, position: int) -> TargetDistribution:
        """Return the model's own distribution; see :class:`DraftTarget`."""
        if self._target is None:
            raise NotImplementedError  # only for rules that compare p with q
        return self._target.after(position)
