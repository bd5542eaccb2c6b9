"""Whether one more pass of the draft model pays, and over how many nodes.

A step that has spent ``s`` seconds on drafts and whose best trees bring ``E`` accepted tokens is worth
``(rows + E) / (seconds of the target's pass + s)``. Another pass of the model over some nodes is expected to bring what
it brought at such nodes before; it is run if that makes the step clearly worth more. So the answer may be none, and it
is where n-grams are sure. That is a guess; what is spent on the model and what its drafts saved is counted
(:class:`Allowance`), and a model that is of no use takes a small share of the time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_MEMORY, _MOST_SLOWNESS = 0.9, 5.0
MOST_NODES = 16
"""Of a row in one pass of the model."""
_READ_FOR_LATER = 8
"""Pending tokens beyond so many are not charged to the step that reads them: later ones profit as much."""
WIDEST = MOST_NODES + _READ_FOR_LATER - 1
"""Tokens of a row in the widest pass of the model whose time is of interest."""

LEAST_GAIN = 1.05
"""What a pass must make a step worth, in steps without it: of several guesses the best one is too good on average."""

PassTimes = Callable[[int, int], NDArray[np.float64]]
"""Of a number of rows and a largest width: what passes of width 0, 1, ... take, in seconds."""

_SHARE = 0.01
"""Of the time of the target's passes."""
_FIRST_PASSES, _MOST_PASSES = 4, 16
"""Passes of the target that an allowance is worth at first, and at most."""


class Allowance:
    """What a draft model may take beyond what it brings: a share of the time of the target's passes.

    All that is spent on the model is taken from it, weighing and tries too, and the time that its drafts have saved is
    added. It begins with what a few passes of the target take, and never holds more than some more.
    """

    def __init__(self) -> None:
        """Begin without limit; there is one from the first pass of the target on."""
        self._seconds = math.inf

    def covers(self, seconds: float) -> bool:
        """Whether so much may be spent now."""
        return self._seconds >= seconds

    def note_target(self, seconds: float) -> None:
        """Add the share of a pass of the target."""
        most = _FIRST_PASSES if math.isinf(self._seconds) else _MOST_PASSES
        self._seconds = min(most * seconds, self._seconds + _SHARE * seconds)

    def add(self, seconds: float) -> None:
        """Add what was saved; negative: what was spent."""
        self._seconds += seconds


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

    def __init__(self, target: PassTimes, draft: PassTimes) -> None:
        """Take how long passes of both models take."""
        self._target, self._draft = target, draft
        # As measured lately: the machine may have become slower, and drafting is more than passes.
        self._overhead_s = 0.0  # of a pass of the draft model
        self._slowness = 1.0  # of passes of the target
        self.rate = 0.0
        """Tokens a second of all rows without a further pass, as of the latest decision; an order of magnitude."""
        self.allowance = Allowance()
        """What may be spent."""

    def choose(
        self, gains: Sequence[Sequence[float]], wanted: Mapping[int, Sequence[float]], pending: int, spent_s: float
    ) -> Choice:
        """Return over how many nodes of a row, and of which rows, a further pass pays most.

        Args:
            gains: per row the probabilities of its best nodes, descending.
            wanted: of some rows, what asking about their open nodes is expected to bring, parents first.
            pending: in a first pass, the most pending tokens of a row: it reads these, and the last of them is the
                first node that it is asked about. 0 in later passes.
            spent_s: seconds spent on drafts in this step.
        """
        expected = len(gains) + _cumulated(gains)
        # What a pass of the model adds is drafted, too: one node more of every row.
        times = self._target_s(len(gains), len(expected) + 1) + spent_s
        now = int(np.argmax(expected / times[:-1]))
        self.rate = float(expected[now] / times[now])
        best = LEAST_GAIN * self.rate
        chosen = Choice(now, 0, [])
        ranked = sorted((row for row in wanted if wanted[row]), key=lambda row: -wanted[row][0])
        count = 1
        while ranked:
            count = min(count, len(ranked))
            added = _cumulated([wanted[row][:MOST_NODES] for row in ranked[:count]])[1:]
            passes = self.pass_s(count, min(pending, _READ_FOR_LATER), len(added))
            values = (expected[now] + added) / (times[now + 1] + passes)
            width = int(np.argmax(values))
            if values[width] > best:
                best, chosen = float(values[width]), Choice(now, width + 1, ranked[:count])
            if count == len(ranked):
                break
            count *= 2
        return chosen

    def target_s(self, num_rows: int, num_drafted: int) -> float:
        """Return the seconds of a pass of the target over so many drafted nodes of each row."""
        return float(self._target_s(num_rows, num_drafted + 1)[-1])

    def pass_s(self, num_rows: int, pending: int, most_nodes: int) -> NDArray[np.float64]:
        """Return the seconds of passes over 1 to ``most_nodes`` nodes of each row; ``pending`` as in :meth:`choose`."""
        first = max(1, pending)
        seconds: NDArray[np.float64] = self._draft(num_rows, first + most_nodes - 1)[first:] + self._overhead_s
        return seconds

    def note(self, expected_s: float, measured_s: float) -> None:
        """Note how long a pass was expected to take, and took with all that belongs to it."""
        self._overhead_s = max(0.0, self._overhead_s + (1.0 - _MEMORY) * (measured_s - expected_s))

    def note_target(self, num_rows: int, width: int, seconds: float) -> None:
        """Note how long a pass of the target took."""
        slowness = min(_MOST_SLOWNESS, seconds / float(self._target(num_rows, width)[width]))
        self._slowness += (1.0 - _MEMORY) * (slowness - self._slowness)
        self.allowance.note_target(seconds)

    def _target_s(self, num_rows: int, width: int) -> NDArray[np.float64]:
        """Return the seconds of passes of the target of width 1 to ``width``."""
        seconds: NDArray[np.float64] = self._target(num_rows, width)[1:] * self._slowness
        return seconds


def _cumulated(rows: Sequence[Sequence[float]]) -> NDArray[np.float64]:
    """Return 0 and then the sums of all rows' first, first two, ... numbers."""
    table = np.zeros((len(rows), max((len(row) for row in rows), default=0)))
    for index, row in enumerate(rows):
        table[index, : len(row)] = row
    sums: NDArray[np.float64] = np.concatenate(([0.0], table.sum(0).cumsum()))
    return sums
