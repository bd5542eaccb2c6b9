"""``auto`` speculation: chooses how many nodes to draft, possibly none, so that the whole batch runs fastest.

Rows of a pass are padded to one width, so one width is chosen for all (:class:`~speculant_graph.budget.StepBudget`). A
node's acceptance probability is estimated from earlier drafts, either by its depth or by the drafter's probability. The
drafter's probability is corrected by how often the drafter's earlier predictions came true. If no draft pays off, the
controller pauses and then makes a trial draft; the pause doubles after each trial that fails.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from speculant_graph._core import best_size
from speculant_graph.budget import StepBudget
from speculant_graph.types import Draft

MAX_DEPTH = 64
"""Greatest depth at which acceptance is recorded."""

_MEMORY = 0.95
"""Factor by which a draft's weight decays with every later draft."""
_PRIOR_ACCEPTANCE, _PRIOR_WEIGHT = 0.7, 1.0
"""Prior acceptance rate of a node whose parent was accepted, and the weight of this prior, in nodes."""
_INHERITED_WEIGHT = 2.0
"""Weight of other sequences' history in a new sequence's estimates, in nodes."""
_SHARED_WEIGHT = 2.0
"""Weight of the overall acceptance in the estimate at each depth, in nodes."""
_FIRST_PAUSE, _LONGEST_PAUSE = 4, 128
_PROBE_COST = 1.4
_LARGEST_PROBE = 2


class AcceptanceHistory:
    """Records acceptance by depth and how often drafters' predictions came true; recent drafts count most.

    For every depth, the history stores the acceptance rate of nodes whose parent was accepted. At depths without recent
    drafts, the overall acceptance rate is assumed.
    """

    __slots__ = ("_accepted", "_predicted", "_prior", "_reached", "_realised")

    def __init__(self, expected: AcceptanceHistory | None = None) -> None:
        """Start from the history of other sequences, if there is one."""
        self._reached = np.zeros(MAX_DEPTH)
        self._accepted = np.zeros(MAX_DEPTH)
        if expected is None:
            self._prior = (_PRIOR_ACCEPTANCE * _PRIOR_WEIGHT, _PRIOR_WEIGHT)
            self._realised = self._predicted = 1.0
        else:
            self._prior = (expected.overall * _INHERITED_WEIGHT, _INHERITED_WEIGHT)
            self._realised, self._predicted = expected.calibration * _INHERITED_WEIGHT, _INHERITED_WEIGHT

    @property
    def overall(self) -> float:
        """Accepted share of the nodes whose parent was accepted."""
        return float((self._accepted.sum() + self._prior[0]) / (self._reached.sum() + self._prior[1]))

    def by_depth(self) -> NDArray[np.float64]:
        """Return the estimated probability that a path is accepted down to depth 1, 2, ..., shape ``[MAX_DEPTH]``."""
        shared = self.overall * _SHARED_WEIGHT
        return np.asarray(np.cumprod((self._accepted + shared) / (self._reached + _SHARED_WEIGHT)))

    @property
    def calibration(self) -> float:
        """Recent ratio of accepted nodes to the number that the drafter predicted; at most 1."""
        return min(1.0, self._realised / self._predicted)

    def observe(self, depths: Sequence[int], num_accepted: int, predicted: float) -> None:
        """Record the outcome of a verified draft.

        Args:
            depths: depth of every node; there must be at least one node.
            num_accepted: length of the accepted path.
            predicted: sum of the nodes' path probabilities; 0 if the draft has no probabilities.
        """
        deepest = min(max(depths), MAX_DEPTH)
        self._reached *= _MEMORY
        self._accepted *= _MEMORY
        self._prior = (self._prior[0] * _MEMORY, self._prior[1] * _MEMORY)
        self._reached[: min(num_accepted + 1, deepest)] += 1.0
        self._accepted[: min(num_accepted, deepest)] += 1.0
        if predicted > 0.0:
            self._realised = self._realised * _MEMORY + num_accepted
            self._predicted = self._predicted * _MEMORY + predicted


class DraftLengthController:
    """Decides how many nodes to draft in every step of one engine."""

    def __init__(self, budget: StepBudget, *, has_predictions: bool, is_measured: bool = False) -> None:
        """Start without a history of drafts.

        Args:
            budget: the step budget.
            has_predictions: whether drafts have calibrated path probabilities.
            is_measured: whether the budget's costs were measured on this machine; only then may the budget forbid
                drafts.
        """
        self._budget, self._has_predictions, self._is_measured = budget, has_predictions, is_measured
        self._everyone = AcceptanceHistory()
        self._step = 0
        self._resume_at = 0
        self._pause = _FIRST_PAUSE

    def new_history(self) -> AcceptanceHistory:
        """Return the history for a new sequence."""
        return AcceptanceHistory(self._everyone)

    def budgets(self, histories: Sequence[AcceptanceHistory | None], limits: Sequence[int]) -> list[int]:
        """Return the maximum number of nodes to draft for every row.

        Args:
            histories: the history of every row; None for rows that always use their limit.
            limits: maximum number of nodes of every row.
        """
        self._step += 1
        fixed = [limit if history is None else 0 for history, limit in zip(histories, limits, strict=True)]
        free = [limit for history, limit in zip(histories, limits, strict=True) if history is not None]
        if not any(free) or (self._is_measured and not self._budget.may_draft()):
            return fixed
        width = max(fixed) + 1
        if self._has_predictions:
            if self._step >= self._resume_at:
                width = max(width, 1 + max(free))
        else:
            gains = np.zeros((len(histories), max(limits)))
            for row, (history, limit) in enumerate(zip(histories, limits, strict=True)):
                if history is not None:
                    gains[row, : min(limit, MAX_DEPTH)] = history.by_depth()[: min(limit, gains.shape[1])]
            width = max(width, self._best_width(gains))
            if width == 1 and self._step >= self._resume_at:
                width = self._probe_width(len(histories), max(free))
        return [min(limit, width - 1) for limit in limits]

    def keep(
        self, histories: Sequence[AcceptanceHistory | None], drafts: Sequence[Draft], can_trim: Sequence[bool]
    ) -> list[Sequence[int]]:
        """Return the indices of each draft's nodes that pay off, ascending; a node's ancestors are always included.

        Dropping nodes because of their tokens is allowed only if the verification rule ignores q (``can_trim``). A rule
        that compares p with q would favour the kept nodes.

        Args:
            histories: as in :meth:`budgets`.
            drafts: the drafts.
            can_trim: for every row, whether its rule permits dropping nodes because of their tokens.
        """
        free = [
            history is not None and can and bool(draft.path_probabilities)
            for history, can, draft in zip(histories, can_trim, drafts, strict=True)
        ]
        if not (self._has_predictions and any(free)):
            return [range(len(draft.token_ids)) for draft in drafts]
        sizes = [len(draft.token_ids) for draft in drafts]
        longest = max(sizes)
        predicted, gains = np.zeros((2, len(drafts), longest))
        orders: list[NDArray[np.int64]] = []
        for row, (history, draft, size) in enumerate(zip(histories, drafts, sizes, strict=True)):
            probabilities = np.asarray(draft.path_probabilities if free[row] else [1.0] * size)
            orders.append(np.argsort(-probabilities, kind="stable"))  # parents stay before their children
            predicted[row, :size] = probabilities[orders[row]]
            gains[row, :size] = predicted[row, :size] * (
                history.calibration if free[row] and history is not None else 1.0
            )
        fixed = max((size for size, is_free in zip(sizes, free, strict=True) if not is_free), default=0) + 1
        width = max(fixed, self._best_width(gains))
        if width == 1 and self._best_width(predicted) > 1 and self._step >= self._resume_at:
            width = self._probe_width(len(drafts), longest)
        return [
            sorted(order[: width - 1].tolist()) if is_free else range(size)
            for size, order, is_free in zip(sizes, orders, free, strict=True)
        ]

    def observe(self, history: AcceptanceHistory, depths: Sequence[int], num_accepted: int, predicted: float) -> None:
        """Record the outcome of a row's draft; see :meth:`AcceptanceHistory.observe`."""
        history.observe(depths, num_accepted, predicted)
        self._everyone.observe(depths, num_accepted, predicted)
        if num_accepted:  # an accepted draft ends the pause
            self._resume_at, self._pause = self._step, _FIRST_PAUSE

    def least_probability(self, limits: Sequence[int]) -> float:
        """Return the path probability below which no node of this step can pay off.

        With several rows the result is 0, because a node costs nothing if another row already needs the same pass
        width.
        """
        return self._budget.prices(1, max(limits)).least_probability if len(limits) == 1 else 0.0

    def _best_width(self, gains: NDArray[np.float64]) -> int:
        """Return the most profitable pass width for node gains ``[rows, nodes]`` in descending order."""
        num_rows, most = gains.shape
        prices = self._budget.prices(num_rows, num_rows * most)
        seconds = np.ascontiguousarray(prices.seconds[num_rows::num_rows])
        return 1 + best_size(gains.sum(0).tolist(), seconds, prices.rate)

    def _probe_width(self, num_rows: int, most_nodes: int) -> int:
        """Return the width of a trial draft, used when no draft seems to pay off, and postpone the next trial."""
        most = min(most_nodes, _LARGEST_PROBE)
        seconds = self._budget.cost.seconds(num_rows, num_rows * (1 + most))[num_rows::num_rows]
        costs = seconds / seconds[0]
        self._resume_at = self._step + self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        return max(2, int(np.count_nonzero(costs <= _PROBE_COST)))
