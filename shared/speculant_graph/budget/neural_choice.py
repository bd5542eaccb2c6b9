"""Whether the drafts of a priced step ask the graph's neural model, which brings tokens and takes time."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

_TRIED = 16
"""Steps in which the manners take turns, at first."""
_NUM_TIMES = 16
"""Times of a manner, the latest ones, of which the median counts: more than that is a moment of other work."""
_CLOSEST, _SHARE = 16, 0.0015
"""Steps from one comparison to the next, at least, and the share of the time that drafting twice may take."""
_USUAL_GAIN, _USUAL_ROWS = 0.03, 1_024
"""Share of a pass that the model usually saves, what wider passes cost left out (docs/experiments.md, "a neural model":
2 to 5 % more tokens on seven kinds of outputs), and sequences to be compared before what they say counts as much."""
_MOST_ROWS = 4_096
"""Sequences, the latest ones, that comparisons are remembered of."""


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
    """Learns what the model takes, and what it brings; both for batches of about as many sequences.

    At first the manners take turns, which tells their times. The model is left out while it takes more time than it
    saves, and what it usually saves is believed at first. Now and then a step is drafted for in both manners. Which of
    the drafts are verified takes turns, and what the target wrote tells what the others would have brought. (If it
    agreed with them to its end, one token more is counted. As either manner is verified as often, this favours none.)
    Both are compared on the same texts, as what one step brings differs far more from the next one's than one manner
    from the other; many comparisons are needed all the same. Of the times of such a step only that of the drafts made
    first counts: they are made with cold caches and take the new tokens in, as the drafts of other steps do. Those of
    other steps do not count, as the machine may be busier at one time than at another.
    """

    def __init__(self) -> None:
        """Begin without experience."""
        self._batches: defaultdict[int, _Experience] = defaultdict(_Experience)

    def manner(self, num_rows: int) -> Manner:
        """Return how to draft for the next step of so many sequences."""
        return self._batches[num_rows.bit_length()].manner()

    def observe(self, num_rows: int, is_neural: bool, draft_s: float, pass_s: float) -> None:
        """Take how long drafts that were made in one manner took, and the pass after them.

        Args:
            num_rows: sequences of the step.
            is_neural: whether they could ask the model.
            draft_s: seconds until they were there.
            pass_s: seconds of the pass.
        """
        self._batches[num_rows.bit_length()].observe(num_rows, is_neural, draft_s, pass_s)

    def compare(self, num_rows: int, comparison: Comparison, rate: float) -> None:
        """Take a comparison.

        Args:
            num_rows: sequences of the step.
            comparison: what came of it.
            rate: tokens, of all sequences, that a second must earn.
        """
        self._batches[num_rows.bit_length()].compare(num_rows, comparison, rate)


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
        self._num_steps, self._next_comparison = 0, math.inf
        self._is_neural, self._verifies_neural, self._is_decided = True, False, False
        self._weight = self._saved_s = 0.0
        self._draft_s = {manner: deque[float](maxlen=_NUM_TIMES) for manner in (True, False)}
        self._pass_s = deque[float](maxlen=_NUM_TIMES)

    def manner(self) -> Manner:
        self._num_steps += 1
        if not self._is_decided:
            return Manner(self._num_steps % 2 == 0)
        if self._num_steps < self._next_comparison:
            return Manner(self._is_neural)
        self._verifies_neural = not self._verifies_neural
        drafts_s = median([*self._draft_s[True], *self._draft_s[False]])
        self._next_comparison = self._num_steps + max(_CLOSEST, drafts_s / (_SHARE * median(self._pass_s)))
        return Manner(self._verifies_neural, compares=True)

    def observe(self, num_rows: int, is_neural: bool, draft_s: float, pass_s: float) -> None:
        self._pass_s.append(pass_s)
        if self._is_decided:  # times of both manners must be of the same moments
            return
        self._draft_s[is_neural].append(draft_s)
        if min(map(len, self._draft_s.values())) >= _TRIED // 2:
            self._decide(num_rows)
            self._is_decided, self._next_comparison = True, self._num_steps + _CLOSEST

    def compare(self, num_rows: int, comparison: Comparison, rate: float) -> None:
        (first, verified), (first_s, verified_s) = comparison.num_tokens, comparison.pass_s
        saved_s = (verified - first) / rate - (verified_s - first_s)
        fading = max(0.5, 1.0 - num_rows / _MOST_ROWS)
        self._weight = fading * self._weight + 1.0
        self._saved_s = fading * self._saved_s + (saved_s if comparison.manner.is_neural else -saved_s)
        self._draft_s[not comparison.manner.is_neural].append(comparison.first_s)
        self._decide(num_rows)

    def _decide(self, num_rows: int) -> None:
        usual_weight = _USUAL_ROWS / num_rows
        saved_s = usual_weight * _USUAL_GAIN * median(self._pass_s) + self._saved_s
        with_s, without_s = self._draft_s.values()
        self._is_neural = saved_s / (usual_weight + self._weight) > median(with_s) - median(without_s)
