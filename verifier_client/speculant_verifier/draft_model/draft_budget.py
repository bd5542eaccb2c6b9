"""Whether one more pass of the draft model pays, and over how many nodes.

Another pass of the model over some nodes is expected to bring what it brought at such nodes before. It is run if that
clearly exceeds what the seconds that it takes must earn (:class:`~speculant_graph.budget.StepBudget`). So the answer
may be none, and it is where n-grams are sure. That is a guess; what is spent on the model and what its drafts saved is
counted (:class:`~speculant_graph.budget.allowance.Allowance`), and a model that is of no use takes a small share of the
time.
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
"""Of a row in one pass of the model."""
_READ_FOR_LATER = 8
"""Pending tokens beyond so many are not charged to the step that reads them: later ones profit as much."""
WIDEST = MOST_NODES + _READ_FOR_LATER - 1
"""Tokens of a row in the widest pass of the model whose time is of interest."""

LEAST_GAIN = 0.05
"""What a pass must bring beyond what its time must earn, as a share of what the step's time must earn: of several
guesses the best one is too good on average."""


class Choice(NamedTuple):
    """What pays."""

    num_drafted: int
    """Nodes of a row that are drafted without a further pass of the draft model."""
    width: int
    """Nodes of a row that a further pass is about; 0 for none."""
    rows: list[int]
    """Rows that take part in it."""


class DraftPrice:
    """Decides pass by pass."""

    def __init__(self, budget: StepBudget, draft: PassCost) -> None:
        """Take what passes of the target must earn, and what those of the draft model cost."""
        self._budget, self._draft = budget, draft
        self.rate = 0.0
        """Tokens, of all rows, that a second must earn, as of the latest decision."""
        self.allowance = Allowance()
        """What may be spent."""

    def choose(self, gains: Sequence[Sequence[float]], wanted: Mapping[int, Sequence[float]], pending: int) -> Choice:
        """Return over how many nodes of a row, and of which rows, a further pass pays most.

        Args:
            gains: per row the probabilities of its best nodes, descending.
            wanted: of some rows, what asking about their open nodes is expected to bring, parents first.
            pending: in a first pass, the most pending tokens of a row: it reads these, and the last of them is the
                first node that it is asked about. 0 in later passes.
        """
        by_width = _sums(gains)
        # What a pass of the model adds is drafted, too: one node more of every row.
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
        """Return the seconds of a pass of the target over so many drafted nodes of each row."""
        return float(self._target_s(num_rows, num_drafted)[-1])

    def pass_s(self, num_rows: int, pending: int, most_nodes: int) -> NDArray[np.float64]:
        """Return the seconds of passes over 1 to ``most_nodes`` nodes of each row; ``pending`` as in :meth:`choose`."""
        first = max(1, pending)
        seconds = self._draft.seconds(num_rows, num_rows * (first + most_nodes - 1))
        return seconds[num_rows::num_rows][first - 1 :]

    def observe(self, num_rows: int, width: int, seconds: float) -> None:
        """Take how long a pass of the model took, with all that belongs to it, over so many tokens of each row."""
        self._draft.observe(num_rows, num_rows * width, seconds)

    def note_target(self, seconds: float) -> None:
        """Take how long a pass of the target took."""
        self.allowance.add_pass(seconds)

    def _target_s(self, num_rows: int, most_drafted: int) -> NDArray[np.float64]:
        """Return the seconds of passes of the target over 0 to ``most_drafted`` drafted nodes of each row."""
        seconds = self._budget.cost.seconds(num_rows, num_rows * (1 + most_drafted))
        return np.ascontiguousarray(seconds[num_rows::num_rows])


def _sums(rows: Sequence[Sequence[float]]) -> NDArray[np.float64]:
    """Return the sum of all rows' first numbers, of all rows' second ones, ..."""
    table = np.zeros((len(rows), max((len(row) for row in rows), default=0)))
    for index, row in enumerate(rows):
        table[index, : len(row)] = row
    return np.asarray(table.sum(0))
