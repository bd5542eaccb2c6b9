"""Learns the cost of an engine's passes from observed passes."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from speculant_graph.budget.pass_cost import CURVES


class LearnedCost:
    """A cost curve that is fitted continuously to observed passes; see :class:`~speculant_graph.budget.PassCost`.

    A pass over T tokens takes a + b T + c (1 - exp(-T/8)) + d (1 - exp(-T/32)) seconds, plus e if it has drafts. No
    coefficient is below 0. For a dense model, the terms a and b suffice. In a mixture of experts, each further token
    activates fewer new experts: c models this for few experts, d for many. The term e exists because engines have
    faster code for passes without drafts.

    The fit uses least squares with a weak prior, and the weights of older passes decay. Because of the decay, pass
    sizes that have not been seen for a long time are tried again. All earlier passes are forgotten if passes suddenly
    take less than half the expected time, because the engine was warming up. Earlier passes are also forgotten if
    passes suddenly take many times as long, because the earlier ones did not run a model. A pass over more than twice
    the tokens of the widest observed pass gets a prohibitive cost. Without this prohibitive cost, the first drafts
    could lose the time of many passes if tokens are expensive.
    """

    def __init__(self) -> None:
        """Start with the prior cost curve."""
        self._forget()
        self._coefficients = _ASSUMED_COEFFICIENTS
        self._known: dict[int, NDArray[np.float64]] = {}
        self._new: list[tuple[int, int, float]] = []
        self._new_s = 0.0
        self._num_left_out = self._num_fits = self._widest = 0

    def seconds(self, num_rows: int, most_tokens: int) -> NDArray[np.float64]:
        """Return the cost of passes: in an arbitrary unit before the first fit, and in seconds afterwards."""
        known = self._known.get(num_rows)
        if known is None or len(known) <= most_tokens:
            tokens = np.maximum(np.arange(max(most_tokens + 1, _FEWEST_KNOWN)), num_rows)
            known = self._known[num_rows] = _features(tokens, num_rows) @ self._coefficients
            known[2 * max(self._widest, num_rows) + 1 :] *= _TOO_DEAR
        return known[: most_tokens + 1]

    def observe(self, num_rows: int, num_tokens: int, seconds: float) -> None:
        """Record the duration of a pass."""
        if num_tokens > self._widest:
            self._widest = num_tokens
            self._known.clear()
        if self._num_left_out < _WARM_UP:
            self._num_left_out += 1
            return
        self._new.append((num_rows, num_tokens, seconds))
        self._new_s += seconds
        if len(self._new) >= (_FEWEST if self._new_s >= _PERIOD_S else _FEWEST << self._num_fits):
            self._fit()

    def _forget(self) -> None:
        self._products = np.zeros((_NUM_FEATURES, _NUM_FEATURES))
        self._sums = np.zeros(_NUM_FEATURES)
        self._assumed_sum = self._seconds_sum = 0.0

    def _fit(self) -> None:
        rows, tokens, seconds = np.array(self._new).T
        features = _features(tokens.astype(np.intp), rows)
        expected = features @ self._coefficients
        relative = float(np.sort(seconds / expected)[len(seconds) // 2])  # np.median imports for 20 ms at first
        if not self._num_fits or relative * _LONGEST < 1.0 or relative > _TOO_LONG:
            self._forget()
            expected *= relative
        seconds = np.minimum(seconds, _LONGEST * expected)
        weights = _MEMORY ** np.arange(seconds.size)[::-1]
        fading = _MEMORY**seconds.size
        self._products = fading * self._products + (features.T * weights) @ features
        self._sums = fading * self._sums + features.T @ (weights * seconds)
        self._assumed_sum = fading * self._assumed_sum + float(weights @ features @ _ASSUMED_COEFFICIENTS)
        self._seconds_sum = fading * self._seconds_sum + float(weights @ seconds)
        assumed = self._seconds_sum / self._assumed_sum * _ASSUMED_COEFFICIENTS
        self._coefficients = _non_negative_fit(
            self._products + _ASSUMED_PRODUCTS, self._sums + _ASSUMED_PRODUCTS @ assumed
        )
        self._new.clear()
        self._new_s = 0.0
        self._known.clear()
        self._num_fits += 1


_NUM_FEATURES = 5
_FEW, _MANY = 8.0, 32.0
"""Numbers of tokens per pass that activate most experts, in models with few experts and with many experts."""
_FEWEST_KNOWN = 64
_TOO_DEAR = 1e6
_MEMORY = 0.99
_LONGEST = 2.0
"""Cap on a pass's measured time, as a multiple of the expected time; any excess is due to other work."""
_TOO_LONG = 8.0
"""If the median ratio of measured to expected time exceeds this number, earlier passes did not run a model."""
_WARM_UP = 2
"""Number of an engine's first passes that are ignored as warm-up. Passes of a longer warm-up are forgotten when later
passes take less than half the time."""
_FEWEST, _PERIOD_S = 10, 0.5
"""Minimum number of passes between two fits of the cost curve, and minimum seconds that these passes take. If passes
take less time than this minimum, the required number doubles with every fit. A fit runs between two passes and takes up
to a millisecond."""


def _features(num_tokens: NDArray[np.intp], num_rows: int | NDArray[np.float64]) -> NDArray[np.float64]:
    features = _features_up_to(1 << max(8, int(num_tokens.max()).bit_length()))[num_tokens]
    features[:, -1] = num_tokens > num_rows
    return features


@cache
def _features_up_to(most_tokens: int) -> NDArray[np.float64]:
    tokens = np.arange(most_tokens)
    columns = (np.ones(most_tokens), tokens / _MANY, 1.0 - np.exp(-tokens / _FEW), 1.0 - np.exp(-tokens / _MANY))
    return np.stack((*columns, tokens), axis=1)


def _non_negative_fit(products: NDArray[np.float64], sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return non-negative least-squares coefficients by repeatedly dropping the most negative one."""
    kept = list(range(sums.size))
    while True:
        found = np.linalg.solve(products[np.ix_(kept, kept)], sums[kept])
        if found.min() >= 0.0 or len(kept) == 1:
            coefficients = np.zeros(sums.size)
            coefficients[kept] = np.maximum(found, 0.0)
            return coefficients
        del kept[int(found.argmin())]


def _assume() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    # The prior is a mixture of experts on a GPU. Its cost grows slowly; a low guess leads to trials, which correct it.
    tokens = np.array([1, 2, 4, 8, 16, 32, 64, 128, 256])
    times = CURVES["gptoss-h100"].seconds(1, int(tokens[-1]))
    features = _features(tokens, 1)
    # The prior says that drafts themselves add no time, until both kinds of passes were seen.
    products = 0.05 * features.T @ features + np.diag([1e-6, 1e-6, 1e-6, 1e-6, 0.5])
    return _non_negative_fit(products, 0.05 * features.T @ (times[tokens] / times[1])), products


_ASSUMED_COEFFICIENTS, _ASSUMED_PRODUCTS = _assume()
