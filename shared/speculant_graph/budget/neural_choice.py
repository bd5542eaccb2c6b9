"""The choice whether a step's drafts use the graph's neural model and the mixer, which gain tokens but take time."""

from __future__ import annotations

from collections import defaultdict, deque
from statistics import median

_USUAL_GAIN = 0.03
"""Share of a pass's time that the model saves, apart from the cost of wider passes. The model gained 2 to 5 % more
tokens on seven kinds of outputs (docs/experiments.md, "a neural model")."""
_TRIED = 4
"""Number of steps with the model before the first choice; they alternate with as many steps without it."""
_EVERY = 64
"""Number of steps between two measurements. A measurement is a step with the other choice; the step before it is timed,
too."""
_NUM_TIMES = 16
"""Number of latest times in a median. A median ignores outliers caused by other work."""


class NeuralChoice:
    """Skips the model if it takes more time than it saves; learned separately for batches of similar size.

    The model's time depends on the machine, the number of sequences and the length of a pass, so it is measured. From
    time to time, a step uses the other choice. The step before it is also timed, because the machine's load varies. The
    model's gain is a constant, because tokens per step vary so much that even thousands of steps would not measure it
    better.
    """

    def __init__(self) -> None:
        """Start without measurements."""
        self._batches: defaultdict[int, _Experience] = defaultdict(_Experience)

    def is_neural(self, num_rows: int) -> bool:
        """Return whether the drafts of the next step, with ``num_rows`` sequences, may use the model."""
        return self._batches[num_rows.bit_length()].next_manner()

    def observe(self, num_rows: int, is_neural: bool, draft_s: float, pass_s: float) -> None:
        """Record the times of the latest step.

        Args:
            num_rows: sequences of the step.
            is_neural: whether its drafts were allowed to use the model.
            draft_s: seconds of drafting.
            pass_s: seconds of the pass.
        """
        self._batches[num_rows.bit_length()].observe(is_neural, draft_s, pass_s)


class _Experience:
    """Measurements and choice for batches of similar size."""

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
