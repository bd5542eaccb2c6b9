"""Chooses whether a step's drafts use the graph's neural model and mixer, which gain tokens but take time."""

from __future__ import annotations

from collections import defaultdict, deque
from statistics import median

_USUAL_GAIN = 0.03
"""Share of a pass's time that the neural model saves, not counting the cost of wider passes. The model gained 2 to 5 %
more tokens per step on seven kinds of outputs (docs/experiments.md, "a neural model")."""
_TRIED = 4
"""Number of steps timed with the model, and of steps timed without it, before the first decision."""
_CLEAR_LOSS = 0.1
"""Share of a pass's time. If the model loses at least this share, one timed step of each kind decides."""
_MOST_LOST = 0.002
"""Share of the time that measurements may lose. Each measurement runs two steps with the slower choice."""
_LEAST_GAP, _MOST_GAP = 64, 256
"""Minimum and maximum number of steps from one measurement to the next, regardless of their loss."""
_NUM_TIMES = 16
"""Number of the latest measured times of which the median is taken. The median ignores outliers that other work
causes."""


class NeuralChoice:
    """Skips the neural model if it takes more time than it saves; decides separately per range of batch sizes.

    The model's time depends on the machine, the number of sequences and the length of a pass, so it is measured. In a
    measurement, two steps use the opposite choice. Of these two steps, the second is timed, because a step also learns
    from the previous step's draft, which takes longer if that draft used the model. The last step before these two is
    also timed, because the machine's load varies. The model's gain is a constant. Tokens per step vary so much that
    even thousands of steps would not measure the gain better.
    """

    def __init__(self) -> None:
        """Start without measurements."""
        self._batches: defaultdict[int, _Experience] = defaultdict(_Experience)

    def is_neural(self, num_rows: int) -> bool:
        """Return whether the drafts of the next step, with ``num_rows`` sequences, may use the model."""
        return self._batches[num_rows.bit_length()].next_manner()

    def observe(self, num_rows: int, is_neural: bool, draft_s: float, pass_s: float) -> None:
        """Record the drafting time and the pass time of the latest step.

        Args:
            num_rows: sequences of the step.
            is_neural: whether its drafts were allowed to use the model.
            draft_s: seconds of drafting.
            pass_s: seconds of the pass.
        """
        self._batches[num_rows.bit_length()].observe(is_neural, draft_s, pass_s)


class _Experience:
    """Timings and the current choice for one range of batch sizes."""

    def __init__(self) -> None:
        self._num_steps = self._first_opposite = 0
        self._gap = _LEAST_GAP
        self._is_neural, self._is_decided, self._is_timed = True, False, True
        self._draft_s = {manner: deque[float](maxlen=_NUM_TIMES) for manner in (True, False)}
        self._pass_s = deque[float](maxlen=_NUM_TIMES)

    def next_manner(self) -> bool:
        self._num_steps += 1
        if not self._is_decided:
            self._is_timed = self._num_steps % 2 == 0
            return self._num_steps % 4 in (3, 0)
        place = self._num_steps - self._first_opposite
        if place == 2:  # the measurement is over
            self._first_opposite += self._gap
        self._is_timed = place in (-1, 1)
        return self._is_neural != (place in (0, 1))

    def observe(self, is_neural: bool, draft_s: float, pass_s: float) -> None:
        self._pass_s.append(pass_s)
        if not self._is_timed:
            return
        self._draft_s[is_neural].append(draft_s)
        with_s, without_s = self._draft_s.values()
        num_tried = min(len(with_s), len(without_s))
        if not num_tried:
            return
        saved_share = _USUAL_GAIN - (median(with_s) - median(without_s)) / median(self._pass_s)
        if num_tried < _TRIED and saved_share > -_CLEAR_LOSS and not self._is_decided:
            return
        self._gap = min(_MOST_GAP, max(_LEAST_GAP, int(2.0 * abs(saved_share) / _MOST_LOST)))
        is_neural = saved_share > 0.0
        if not self._is_decided or is_neural != self._is_neural:
            self._first_opposite = self._num_steps + self._gap
        self._is_decided, self._is_neural = True, is_neural
