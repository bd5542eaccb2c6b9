"""Whether the drafts of a priced step ask the graph's neural model and the mixer, which bring tokens and take time."""

from __future__ import annotations

from collections import defaultdict, deque
from statistics import median

_USUAL_GAIN = 0.03
"""Share of a pass that the model saves, what wider passes cost left out: 2 to 5 % more tokens on seven kinds of outputs
(docs/experiments.md, "a neural model")."""
_TRIED = 8
"""Steps in each manner, in turns, before the first choice."""
_EVERY = 64
"""Steps of which one is drafted for in the other manner, and the one before it timed."""
_NUM_TIMES = 16
"""Times, the latest ones, of which the median counts: more than that is a moment of other work."""


class NeuralChoice:
    """Leaves the model out where it takes more time than it saves; learned for batches of about as many sequences.

    What it takes differs between machines, and with the sequences and the length of a pass. So it is measured: now and
    then a step is drafted for in the other manner, and the step before it is timed, too, as the machine may be busier
    at one time than at another. What it saves is taken as known: from one step to the next, tokens differ so much more
    than by the manner that thousands of steps say less.
    """

    def __init__(self) -> None:
        """Begin without experience."""
        self._batches: defaultdict[int, _Experience] = defaultdict(_Experience)

    def is_neural(self, num_rows: int) -> bool:
        """Return whether the drafts of the next step, of so many sequences, may ask the model."""
        return self._batches[num_rows.bit_length()].next_manner()

    def observe(self, num_rows: int, is_neural: bool, draft_s: float, pass_s: float) -> None:
        """Take the times of the latest step of so many sequences.

        Args:
            num_rows: sequences of the step.
            is_neural: whether its drafts could ask the model.
            draft_s: seconds until they were there.
            pass_s: seconds of the pass.
        """
        self._batches[num_rows.bit_length()].observe(is_neural, draft_s, pass_s)


class _Experience:
    """Of batches of about as many sequences."""

    def __init__(self) -> None:
        self._num_steps = 0
        self._is_neural, self._is_decided, self._is_timed = True, False, True
        self._draft_s = {manner: deque[float](maxlen=_NUM_TIMES) for manner in (True, False)}
        self._pass_s = deque[float](maxlen=_NUM_TIMES)

    def next_manner(self) -> bool:
        self._num_steps += 1
        if not self._is_decided:
            return self._num_steps % 2 == 0
        place = self._num_steps % _EVERY
        self._is_timed = place >= _EVERY - 2
        return self._is_neural != (place == _EVERY - 1)

    def observe(self, is_neural: bool, draft_s: float, pass_s: float) -> None:
        self._pass_s.append(pass_s)
        if not self._is_timed:
            return
        self._draft_s[is_neural].append(draft_s)
        with_s, without_s = self._draft_s.values()
        if min(len(with_s), len(without_s)) >= _TRIED:
            self._is_decided = True
            self._is_neural = median(with_s) - median(without_s) < _USUAL_GAIN * median(self._pass_s)
