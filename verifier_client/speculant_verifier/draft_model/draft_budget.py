"""Decides whether another pass of the draft model pays off, and how many nodes it covers.

The expected gain of a pass is estimated from the gains that earlier passes had at similar nodes. The pass runs only if
its expected gain, in tokens, clearly exceeds the price of its time (:class:`~speculant_graph.budget.StepBudget`). A
decoding step may therefore run no draft pass at all, for example where the n-grams are confident.

Expected gains are only estimates. An account therefore also weighs the time spent on the draft model against the time
that its drafts saved (:class:`~speculant_graph.budget.allowance.Allowance`). The account limits a useless model to a
small share of the time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from speculant_graph._core import best_size
from speculant_graph.budget import PassCost, StepBudget
from speculant_graph.budget.allowance import Allowance

MOST_NODES = 16
"""Maximum number of tree nodes per row in one pass of the draft model."""
_READ_FOR_LATER = 8
"""Maximum number of pending tokens per row whose reading time is charged to the current step. The time to read further
pending tokens is not charged, because later steps benefit equally from this reading."""
WIDEST = MOST_NODES + _READ_FOR_LATER - 1
"""Maximum number of tokens per row for which the durations of the draft model's passes are learned."""

_FIRST_PASSES = 4.0
"""Initial credit of the draft model's time account, as a number of target passes. The draft model is paused for the
first time when this credit is used up. The credit is twice the n-grams' credit, because a model's draft quality varies
more between requests. A good draft model must not be paused after a few unpredictable requests."""
LEAST_GAIN = 0.05
"""Extra expected gain that a draft pass must have, as a share of the price of the step's time. The extra gain is
required because the maximum of several estimates is too high on average (winner's curse)."""


class Choice(NamedTuple):
    """The most profitable next pass of the draft model."""

    num_drafted: int
    """Number of nodes per row to draft if the draft model runs no further pass."""
    width: int
    """Number of nodes per row in the next pass of the draft model; 0 for no pass."""
    rows: list[int]
    """Rows that take part in the next pass of the draft model."""


class DraftPrice:
    """Decides which passes of the draft model pay off."""

    def __init__(self, budget: StepBudget, draft: PassCost) -> None:
        """Use the target's budget and the cost of the draft model's passes."""
        self._budget, self._draft = budget, draft
        self.rate = 0.0
        """Rate that drafts had to earn at the latest decision, in tokens of all rows per second."""
        self.allowance = Allowance(_FIRST_PASSES)
        """Account that weighs the draft model's time against the time that its drafts save."""

    def begin_account(self) -> None:
        """Reset the model's account of gains and losses."""
        self.allowance = Allowance(_FIRST_PASSES)

    def choose(self, gains: Sequence[Sequence[float]], wanted: Mapping[int, Sequence[float]], pending: int) -> Choice:
        """Choose the rows, and the nodes per row, with which another pass of the draft model pays off most.

        Args:
            gains: per row, the probabilities of its best nodes, descending.
            wanted: for each row that may join the pass, the expected gains of expanding its open nodes, parents first.
            pending: maximum number of pending tokens per row in a step's first pass; 0 in later passes. A step's first
                pass reads the pending tokens; the last pending token is the first node that the pass expands.
        """
        by_width = _sums(gains)
        # The target also verifies one more node per row, which the model's pass adds.
        seconds = self._target_s(len(gains), len(by_width) + 1)
        self.rate = self._budget.prices(len(gains), 0).rate
        now = best_size(by_width.tolist(), seconds[:-1], self.rate)
        best, chosen = 0.0, Choice(now, 0, [])
        ranked = sorted((row for row in wanted if wanted[row]), key=lambda row: -wanted[row][0])
        count = 1
        while ranked:
            count = min(count, len(ranked))
            added = _sums([wanted[row][:MOST_NODES] for row in ranked[:count]]).cumsum()
            passes = self.pass_s(count, min(pending, _READ_FOR_LATER), len(added))
            taken = passes + seconds[now + 1] - seconds[now]
            values = added - self.rate * (taken + LEAST_GAIN * (seconds[now + 1] + passes))
            width = int(np.argmax(values))
            if values[width] > best:
                best, chosen = float(values[width]), Choice(now, width + 1, ranked[:count])
            if count == len(ranked):
                break
            count *= 2
        return chosen

    def target_s(self, num_rows: int, num_drafted: int) -> float:
        """Return the duration of the target's pass over ``num_drafted`` nodes per row, in seconds."""
        return float(self._target_s(num_rows, num_drafted)[-1])

    def pass_s(self, num_rows: int, pending: int, most_nodes: int) -> NDArray[np.float64]:
        """Return the durations in seconds of the draft model's passes over 1 to ``most_nodes`` nodes per row.

        :meth:`choose` explains the parameter ``pending``.
        """
        first = max(1, pending)
        seconds = self._draft.seconds(num_rows, num_rows * (first + most_nodes - 1))
        return seconds[num_rows::num_rows][first - 1 :]

    def observe(self, num_rows: int, width: int, seconds: float) -> None:
        """Record the duration of the draft model's pass over ``width`` tokens per row, including overhead."""
        self._draft.observe(num_rows, num_rows * width, seconds)

    def record_target(self, seconds: float) -> None:
        """Record the duration of the target's pass."""
        self.allowance.add_pass(seconds)

    def _target_s(self, num_rows: int, most_drafted: int) -> NDArray[np.float64]:
        """Return the durations, in seconds, of the target's passes over 0 to ``most_drafted`` nodes per row."""
        seconds = self._budget.cost.seconds(num_rows, num_rows * (1 + most_drafted))
        return np.ascontiguousarray(seconds[num_rows::num_rows])


def _sums(rows: Sequence[Sequence[float]]) -> NDArray[np.float64]:
    """Return the column sums of rows of different lengths."""
    table = np.zeros((len(rows), max((len(row) for row in rows), default=0)))
    for index, row in enumerate(rows):
        table[index, : len(row)] = row
    return np.asarray(table.sum(0))
