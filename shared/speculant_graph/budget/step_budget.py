"""Decides how much one engine may draft, and learns from every step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from speculant_graph.budget.allowance import Allowance
from speculant_graph.budget.pass_cost import PassCost

_MEMORY = 0.98
"""Factor by which a step's weight decays with every later step."""
_FEWEST, _PERIOD_S = 12, 0.5
"""Minimum number of steps between two updates of the prices, and minimum seconds that their passes take. If passes take
less time than this minimum, the required number doubles with every update. An update runs between two passes and takes
about a millisecond."""
_MOST_TURNS = 64
"""Maximum number of initial steps that alternate between drafting and not drafting. The limit matters if most passes
are prefill, because prefill passes are not measured."""
_FIRST_PASSES = 2.0
"""Time that drafts may lose before drafting pauses for the first time, as a number of passes."""
_FEW_NODES = 8
"""Prices of a step assume that a draft may grow to this many nodes, even if all recent drafts were smaller."""
_MOST_DRAFTING = 1.0
"""Cap on the drafting time counted for a step, as a multiple of its pass's time. Time above the cap must be due to
other work."""


@dataclass(frozen=True, slots=True)
class StepPrices:
    """Pass costs and thresholds that decide which nodes the next steps keep, for a given number of rows."""

    seconds: NDArray[np.float64]
    """Seconds of a pass over 0, 1, ... tokens, up to the number of rows plus the maximum nodes of all drafts."""
    rate: float
    """Minimum tokens, over all rows together, that every second added by drafts must earn."""
    least_probability: float
    """Path probability below which verifying a node cannot pay; 0 if unknown."""


class StepBudget:
    """Decides whether to draft at all, and computes the required token rate and the least node probability.

    *Rate.* A slower pass delays all later passes. Throughput is therefore highest if every second that drafts add earns
    at least the average tokens per second. The average covers the latest steps, including drafting time, and is never
    below the rate of passes without drafts.

    *Pauses.* The value of a node and the cost of a wider pass are only estimates; the actual gain or loss is known
    after the step. If drafts, including the time to make them, lost more time than the limit allows
    (:class:`~speculant_graph.budget.allowance.Allowance`), steps run without drafts.
    """

    def __init__(self, cost: PassCost, *, is_cost_known: bool = True) -> None:
        """Start without measurements.

        Args:
            cost: cost of passes; a :class:`~speculant_graph.budget.LearnedCost` learns from observed passes.
            is_cost_known: whether the cost is already known. If the cost is unknown, the first steps alternate between
                drafting and not drafting, so that passes of both kinds are observed.
        """
        self.cost = cost
        """Cost of passes."""
        self._allowance = Allowance(_FIRST_PASSES)
        self._tokens = self._time = 1.0  # of the latest steps: tokens per row; time in plain passes
        self._size = 0.0  # average number of kept nodes in the latest steps
        self._drafting = DraftingCost()
        self._prices: dict[tuple[int, int], StepPrices] = {}
        self._observed: list[tuple[int, int, int, float, float, int]] = []
        self._is_known = False
        self._turns_left = 0 if is_cost_known else _MOST_TURNS
        self._every, self._period_s = _FEWEST, 0.0

    def may_draft(self) -> bool:
        """Return whether to draft at this step."""
        if self._turns_left:
            self._turns_left -= 1
            return self._turns_left % 2 == 1
        return self._allowance.allows()

    def num_rest(self) -> int:
        """Return the number of passes for which :meth:`may_draft` stays False; 0 if unknown or not paused."""
        return 0 if self._turns_left else self._allowance.num_rest()

    def prices(self, num_rows: int, most_nodes: int) -> StepPrices:
        """Return the prices for the next step: pass costs, required token rate and least node probability.

        A node is kept if its expected gain covers the seconds that it adds, at the required token rate. A node's added
        seconds are its drafting time plus its share of the extra time of the wider pass. To find a node's share, the
        extra time per node is calculated for every likely draft size above the usual one, and the lowest value is used.
        The reason is that in a mixture of experts, many nodes together may pay off where a few nodes would not.

        Args:
            num_rows: rows of the batch.
            most_nodes: maximum number of nodes in all drafts together.
        """
        known = self._prices.get((num_rows, most_nodes))
        if known is not None:
            return known
        seconds = self.cost.seconds(num_rows, num_rows + most_nodes)
        rate = max(1.0, self._tokens / self._time) * num_rows / float(seconds[num_rows])
        least = 0.0
        if self._is_known and most_nodes:
            usual = min(int(self._size), most_nodes - 1)
            largest = min(most_nodes, max(4 * usual, _FEW_NODES))
            more = seconds[num_rows + usual + 1 : num_rows + largest + 1] - seconds[num_rows + usual]
            added_s = float((more / np.arange(1, len(more) + 1)).min()) + self._drafting.node_s
            least = min(1.0, rate * added_s)
        prices = self._prices[num_rows, most_nodes] = StepPrices(seconds, rate, least)
        return prices

    def observe_plain(self, num_rows: int, pass_s: float) -> None:
        """Record the time of a pass without drafts."""
        if self._turns_left:  # keep the order of passes, because an engine's first passes are ignored
            self.observe(num_rows, num_rows, num_rows, pass_s, 0.0, 0)
        else:
            self.cost.observe(num_rows, num_rows, pass_s)
            self._allowance.add_pass(float(self.cost.seconds(num_rows, num_rows)[num_rows]))

    def observe(
        self, num_rows: int, num_tokens: int, num_new: int, pass_s: float, draft_s: float, num_drafted: int
    ) -> None:
        """Record the tokens and times of a step with drafts.

        Args:
            num_rows: sequences of the pass.
            num_tokens: tokens of the pass, all rows together.
            num_new: new tokens of all rows.
            pass_s: seconds of the pass, positive.
            draft_s: seconds of drafting.
            num_drafted: drafted nodes, including dropped ones.
        """
        if self._is_known:
            self._account(num_rows, num_tokens, num_new / num_rows, draft_s / pass_s)
        self._observed.append((num_rows, num_tokens, num_new, pass_s, draft_s, num_drafted))
        self._period_s += pass_s
        if len(self._observed) >= (_FEWEST if self._period_s >= _PERIOD_S else self._every):
            self._learn()
            self._observed.clear()
            self._every, self._period_s = 2 * self._every, 0.0
            self._prices.clear()
            self._is_known, self._turns_left = True, 0

    def _learn(self) -> None:
        for num_rows, num_tokens, _, seconds, _, _ in self._observed:
            self.cost.observe(num_rows, num_tokens, seconds)
        rows, tokens, new, pass_s, draft_s, drafted = np.array(self._observed).T
        relative = np.empty(len(rows))  # time in plain passes, by the learned cost, so the machine's load cancels out
        for num_rows in set(rows.astype(np.intp).tolist()):
            is_of = rows == num_rows
            widths = tokens[is_of].astype(np.intp)
            table = self.cost.seconds(num_rows, int(widths.max()))
            relative[is_of] = table[widths] / table[num_rows]
        fading, weights = _fading(len(rows))
        time = relative * (1.0 + np.minimum(_MOST_DRAFTING, draft_s / pass_s))
        written = new / rows
        self._size = fading * self._size + (1.0 - _MEMORY) * float(weights @ (tokens - rows))
        self._tokens = fading * self._tokens + float(weights @ written)
        self._time = fading * self._time + float(weights @ time)
        is_drafted = draft_s > 0.0
        if is_drafted.any():
            self._drafting.observe(drafted[is_drafted], draft_s[is_drafted])
        if not self._is_known:
            for step in self._observed:
                self._account(*step[:2], step[2] / step[0], step[4] / step[3])

    def _account(self, num_rows: int, num_tokens: int, written: float, draft_share: float) -> None:
        table = self.cost.seconds(num_rows, num_tokens)
        plain_s = float(table[num_rows])
        self._allowance.add_pass(plain_s)
        self._allowance.add(written * plain_s - float(table[num_tokens]) * (1.0 + min(_MOST_DRAFTING, draft_share)))


class DraftingCost:
    """Learns drafting time as a fixed part per step plus a part per node."""

    def __init__(self) -> None:
        """Start without measurements."""
        self._weight = self._nodes = self._seconds = self._squares = self._products = 0.0

    @property
    def node_s(self) -> float:
        """Drafting seconds per additional node; 0 if unknown.

        The fixed part is not negative, so this value is at most the mean drafting time per node. Without this upper
        limit, noise would determine the value when all steps have about the same number of nodes, as an engine's first
        steps do.
        """
        if not self._nodes:
            return 0.0
        variance = self._squares * self._weight - self._nodes**2
        covariance = self._products * self._weight - self._nodes * self._seconds
        slope = max(0.0, covariance / variance) if variance > 0.0 else 0.0
        return min(slope, self._seconds / self._nodes)

    def observe(self, num_nodes: NDArray[np.float64], seconds: NDArray[np.float64]) -> None:
        """Record the drafting times of steps; outliers are capped at four times the usual time.

        Args:
            num_nodes: nodes per step, the latest step last.
            seconds: seconds per step.
        """
        usual_s = self._seconds / self._weight if self._weight else float(np.sort(seconds)[len(seconds) // 2])
        seconds = np.minimum(seconds, 4.0 * usual_s)
        fading, weights = _fading(len(seconds))
        terms = np.stack((np.ones(len(seconds)), num_nodes, seconds, num_nodes**2, num_nodes * seconds)) @ weights
        kept = (self._weight, self._nodes, self._seconds, self._squares, self._products)
        self._weight, self._nodes, self._seconds, self._squares, self._products = (
            fading * sum_ + term for sum_, term in zip(kept, terms.tolist(), strict=True)
        )


def _fading(num_steps: int) -> tuple[float, NDArray[Any]]:
    """Return the factor by which ``num_steps`` steps fade older data, and the weight of each of these steps."""
    return _MEMORY**num_steps, _MEMORY ** np.arange(num_steps)[::-1]
