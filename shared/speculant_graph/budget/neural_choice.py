"""Whether the drafts of a priced step ask the graph's neural model, which brings tokens and takes time."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

_FIRST = 16
"""Steps before the first comparison."""
_FEWEST = 4
"""Comparisons before the first choice."""
_NUM_TIMES = 16
"""Times of a manner, the latest ones, of which the median counts: more than that is a moment of other work."""
_CLOSEST, _SHARE = 4, 0.0015
"""Steps from one comparison to the next, at least; more once there was a choice, so that drafting twice takes no larger
share of the time."""
_USUAL_GAIN, _USUAL_ROWS = 0.03, 256
"""Share of the tokens that the model usually brings, what wider passes cost left out (docs/experiments.md, "a neural
model": 2 to 5 % on seven kinds of outputs), and sequences to be compared before what they say counts as much."""
_MEMORY = 1.0 - 1.0 / 512
"""What a comparison weighs after the next one."""


@dataclass(frozen=True, slots=True)
class Manner:
    """How to draft for a step."""

    is_neural: bool
    """Whether the drafts that are verified ask the neural model."""
    compares: bool = False
    """Whether to draft in the other manner, too, before that."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What became of a step that was drafted for in both manners."""

    manner: Manner
    """Of the drafts that were verified, which were made last."""
    first_s: float
    """Seconds of the drafts that were made first, in the other manner."""
    num_tokens: tuple[int, int]
    """Tokens that the drafts made first would have brought, as far as that is known, and those verified brought."""
    pass_s: tuple[float, float]
    """Seconds of their passes."""


class NeuralChoice:
    """Learns by comparisons what the model brings, and what it takes; both for batches of about as many sequences.

    Now and then a step is drafted for in both manners. Which of the drafts are verified takes turns, and what the
    target wrote tells what the others would have brought. (If it agreed with them to its end, one token more is
    counted. As either manner is verified as often, this favours none.) Both are compared on the same texts, as what one
    step brings differs far more from the next one's than one manner from the other. Of the time only that of the drafts
    made first counts: they are made with cold caches and take the new tokens in, as the drafts of other steps do.

    The model is left out while the tokens that it brings are worth less than its time. What it usually brings is
    believed until there is experience, as comparisons differ widely and many steps are needed to tell.
    """

    def __init__(self) -> None:
        """Begin with the model."""
        self._batches: defaultdict[int, _Experience] = defaultdict(_Experience)

    def manner(self, num_rows: int) -> Manner:
        """Return how to draft for the next step of so many sequences."""
        found = self._batches[num_rows.bit_length()]
        found.num_steps += 1
        if found.num_steps < found.next_comparison:
            return Manner(found.is_neural)
        found.next_comparison += found.pause
        found.verifies_neural = not found.verifies_neural
        return Manner(found.verifies_neural, compares=True)

    def observe(self, num_rows: int, comparison: Comparison, rate: float) -> None:
        """Take a comparison.

        Args:
            num_rows: sequences of the step.
            comparison: what came of it.
            rate: tokens, of all sequences, that a second must earn.
        """
        self._batches[num_rows.bit_length()].observe(num_rows, comparison, rate)


def num_agreeing(draft: Sequence[int], written: Sequence[int]) -> int:
    """Return the tokens that a chain would have brought, the target's own included, as far as is known.

    Args:
        draft: the chain.
        written: what was written after the same text.
    """
    agreed = 0
    while agreed < min(len(draft), len(written)) and draft[agreed] == written[agreed]:
        agreed += 1
    return agreed + 1


class _Experience:
    """Of batches of about as many sequences."""

    def __init__(self) -> None:
        self.is_neural, self.verifies_neural = True, False
        self.num_steps, self.next_comparison, self.pause = 0, _FIRST, _CLOSEST
        self._num_compared = 0
        self._weight = self._gained = self._tokens = 0.0
        self._seconds = {manner: deque[float](maxlen=_NUM_TIMES) for manner in (True, False)}

    def observe(self, num_rows: int, comparison: Comparison, rate: float) -> None:
        self._num_compared += 1
        (first, verified), (first_s, verified_s) = comparison.num_tokens, comparison.pass_s
        gained = verified - first - rate * (verified_s - first_s)
        self._weight = _MEMORY * self._weight + 1.0
        self._gained = _MEMORY * self._gained + (gained if comparison.manner.is_neural else -gained)
        self._tokens = _MEMORY * self._tokens + verified
        self._seconds[not comparison.manner.is_neural].append(comparison.first_s)
        with_s, without_s = self._seconds.values()
        if self._num_compared < _FEWEST or not (with_s and without_s):
            return
        usual_weight = _USUAL_ROWS / num_rows
        usual = _USUAL_GAIN * self._tokens / self._weight
        gain = (usual_weight * usual + self._gained) / (usual_weight + self._weight)
        self.is_neural = gain > rate * (median(with_s) - median(without_s))
        self.pause = max(_CLOSEST, math.ceil(median([*with_s, *without_s]) / (_SHARE * verified_s)))
