"""Drafts of a batch as arrays, one after another, as they travel."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from speculant_graph.types import Draft, Proposals, StrategyName

Numbers = Sequence[int] | NDArray[Any]
"""Whole numbers in whatever they came."""

_NONE = np.zeros(0, np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class DraftBatch:
    """Drafts of several sequences."""

    strategy: StrategyName
    """What made the drafts."""
    lengths: Sequence[int]
    """Per sequence, its nodes."""
    ended_early: Sequence[int]
    """Per sequence, 1 if there are fewer nodes than asked for, else 0."""
    token_ids: Numbers
    """Per node."""
    parents: Numbers
    """Per node; see :class:`~speculant_graph.types.Draft`."""
    path_probabilities: Sequence[float] | NDArray[Any] = ()
    """Per node; empty where the strategy has none."""
    candidate_counts: Numbers = ()
    """Per node, entries of its q; empty where the strategy has none."""
    candidate_token_ids: NDArray[Any] = field(default_factory=lambda: _NONE)
    """The distributions' tokens, one node after another."""
    candidate_probabilities: NDArray[Any] = field(default_factory=lambda: _NONE)
    """Their probabilities."""
    draft_id: int = 0
    """Names the answer that these drafts are of."""

    def drafts(self) -> list[Draft]:
        """Return all drafts."""
        tokens, parents = _as_list(self.token_ids), _as_list(self.parents)
        probabilities = _as_list(self.path_probabilities)
        bounds = list(accumulate(_as_list(self.candidate_counts), initial=0))
        drafts = []
        start = 0
        for index, length in enumerate(self.lengths):
            end = start + length
            drafts.append(
                self._draft(
                    index, tokens[start:end], parents[start:end], probabilities[start:end], bounds[start : end + 1]
                )
            )
            start = end
        return drafts

    def _draft(
        self, index: int, tokens: list[int], parents: list[int], probabilities: list[float], bounds: list[int]
    ) -> Draft:
        has_proposals = len(bounds) > 1
        return Draft(
            tuple(tokens),
            tuple(parents),
            tuple(probabilities),
            Proposals(bounds, self.candidate_token_ids, self.candidate_probabilities) if has_proposals else (),
            self.strategy,
            bool(self.ended_early[index]),
            self.draft_id,
        )


def batch_of(drafts: Sequence[Draft]) -> DraftBatch:
    """Return drafts of one strategy as arrays."""
    drafted = [draft for draft in drafts if draft.token_ids]
    has_probabilities = all(draft.path_probabilities for draft in drafted)
    has_proposals = all(draft.proposals for draft in drafted)
    proposals = [proposal for draft in drafted for proposal in draft.proposals] if has_proposals else []
    return DraftBatch(
        strategy=drafts[0].strategy if drafts else "greedy",
        lengths=[len(draft) for draft in drafts],
        ended_early=[int(draft.terminated_early) for draft in drafts],
        token_ids=_joined(draft.token_ids for draft in drafts),
        parents=_joined(draft.parents for draft in drafts),
        path_probabilities=_joined(draft.path_probabilities for draft in drafts) if has_probabilities else (),
        candidate_counts=[len(proposal.token_ids) for proposal in proposals],
        candidate_token_ids=np.concatenate([proposal.token_ids for proposal in proposals]) if proposals else _NONE,
        candidate_probabilities=(
            np.concatenate([proposal.probabilities for proposal in proposals]) if proposals else _NONE
        ),
    )


def _joined(parts: Iterable[Iterable[Any]]) -> list[Any]:
    return list(chain.from_iterable(parts))


def _as_list(values: Any) -> Any:
    return values.tolist() if isinstance(values, np.ndarray) else values
