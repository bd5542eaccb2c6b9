"""How many drafted tokens pay, for a whole batch: a pass over more tokens takes longer for every sequence in it.

The drafts of a step are the nodes of all its sequences, each with the probability that it is accepted. Of the most
probable ones as many are verified as give the most expected tokens for the time of the pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from speculant_graph.draft.cost import COST_CURVES
from speculant_graph.types import Draft


class LearnedCost:
    """What passes cost: a curve that is learned from the passes, and goes on learning.

    Seconds = a + b T + c T / (T + 16) + d [something is drafted], for a pass over T tokens, no coefficient below 0: a
    dense model is a and b, a mixture of experts wakes fewer and fewer further experts (c), and engines have quicker
    ways for passes in which nothing is drafted (d). Least squares in which older passes count less and less, and a
    curve that is assumed counts a little: what has not been seen for long is tried again.
    """

    def __init__(self) -> None:
        """Begin with what is assumed."""
        self._products = np.zeros((_NUM_FEATURES, _NUM_FEATURES))
        self._sums = np.zeros(_NUM_FEATURES)
        self._assumed_sum = self._seconds_sum = 0.0
        self._coefficients = _ASSUMED_COEFFICIENTS
        self._new: list[tuple[int, int, float]] = []
        self._num_left_out = self._num_fits = 0

    def of(self, num_rows: int, most_drafted: int) -> list[float]:
        """Return the cost of passes over ``num_rows`` sequences and 0 to ``most_drafted`` drafted tokens.

        As many numbers and one, positive, never falling; in seconds, once passes were seen.
        """
        fixed, linear, saturating, drafting = self._coefficients.tolist()
        # Plain numbers: between two passes the caches are cold, and a call of NumPy takes longer than the sum.
        costs = [
            fixed + drafting + tokens * (linear / _HALF + saturating / (tokens + _HALF))
            for tokens in range(num_rows, num_rows + most_drafted + 1)
        ]
        costs[0] -= drafting
        return costs

    def observe(self, num_rows: int, num_drafted: int, seconds: float) -> None:
        """Note how long a pass took."""
        if self._num_left_out < _WARM_UP:
            self._num_left_out += 1
            return
        self._new.append((num_rows, num_drafted, seconds))
        if len(self._new) == _EVERY:
            self._fit()

    def _fit(self) -> None:
        rows, drafted, seconds = np.array(self._new).T
        features = _features(rows + drafted, drafted > 0)
        expected = features @ self._coefficients
        if not self._num_fits:
            expected *= np.median(seconds / expected)
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
        self._num_fits += 1


_NUM_FEATURES = 4
_HALF = 16.0
_MEMORY = 0.99
_LONGEST = 2.0
"""Longer than so many times what was expected, something else took the time."""
_WARM_UP, _EVERY = 8, 8
"""Passes in which an engine warms up, which are left out; and between two fits."""


def _features(num_tokens: NDArray[Any], has_drafts: NDArray[np.bool_]) -> NDArray[np.float64]:
    columns = (np.ones(num_tokens.size), num_tokens / _HALF, num_tokens / (num_tokens + _HALF), has_drafts)
    return np.stack(columns, axis=1).astype(np.float64)


def _non_negative_fit(products: NDArray[np.float64], sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the coefficients >= 0 of least squares, leaving out the most negative one again and again."""
    kept = list(range(sums.size))
    while True:
        found = np.linalg.solve(products[np.ix_(kept, kept)], sums[kept])
        if found.min() >= 0.0 or len(kept) == 1:
            coefficients = np.zeros(sums.size)
            coefficients[kept] = np.maximum(found, 0.0)
            return coefficients
        del kept[int(found.argmin())]


def _assume() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    curve = COST_CURVES["cpu-moe"]
    tokens = np.array(curve.tokens)
    features = _features(tokens, tokens > 1)
    products = 0.1 * features.T @ features + 1e-6 * np.eye(_NUM_FEATURES)
    return _non_negative_fit(products, 0.1 * features.T @ np.array(curve.relative)), products


_ASSUMED_COEFFICIENTS, _ASSUMED_PRODUCTS = _assume()


def paying_drafts(drafts: Sequence[Draft], cost: LearnedCost) -> list[Draft]:
    """Return what is worth verifying of the drafts of a batch, one draft for each of its sequences.

    Exact only where the engine verifies by what it would have chosen itself, as all engines do that take tokens without
    their distributions. A node is kept with all its ancestors. Drafts without path probabilities stay whole.
    """
    # Parents stay before their children: no path is more probable than its beginning, and equals stay in order.
    nodes = sorted(
        (-probability, row, node) for row, draft in enumerate(drafts)
        for node, probability in enumerate(draft.path_probabilities)
    )  # fmt: skip
    if not nodes:
        return list(drafts)
    num_fixed = sum(len(draft) for draft in drafts if not draft.path_probabilities)
    costs = cost.of(len(drafts), num_fixed + len(nodes))[num_fixed:]
    expected = float(len(drafts))
    best, num_kept = expected / costs[0], 0
    for size, (probability, _, _) in enumerate(nodes, start=1):
        expected -= probability
        if expected > best * costs[size]:
            best, num_kept = expected / costs[size], size
    kept: list[list[int]] = [[] for _ in drafts]
    for _, row, node in nodes[:num_kept]:
        kept[row].append(node)
    return [
        draft.part(sorted(of_row)) if draft.path_probabilities else draft
        for draft, of_row in zip(drafts, kept, strict=True)
    ]
