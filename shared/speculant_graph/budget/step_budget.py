"""What the drafts of one engine may cost, step by step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from speculant_graph.budget.allowance import Allowance
from speculant_graph.budget.pass_cost import PassCost

_MEMORY = 0.98
"""What a step weighs after the next one."""
_FEWEST, _PERIOD_S = 12, 0.5
"""Steps that are learned from together, and for which prices hold: no fewer, and twice as many each time until they
take so many seconds. Learning takes about a millisecond, between two passes."""
_MOST_TURNS = 64
"""Steps in which drafts take turns with none, even if hardly any pass was a measure, as all of them read prompts."""
_FIRST_PASSES = 2.0
"""Passes that drafts may lose before they rest for the first time."""
_FEW_NODES = 8
"""So many are always likely."""
_MOST_DRAFTING = 1.0
"""Of a pass, that drafting may take to count: more is a moment of other work."""


@dataclass(frozen=True, slots=True)
class StepPrices:
    """What holds for the next steps of so many rows."""

    seconds: NDArray[np.float64]
    """Of passes over 0, 1, ... tokens, up to the rows and all nodes that may be drafted for them."""
    rate: float
    """Tokens, of all rows, that a second must earn."""
    least_probability: float
    """Of a path below which no node can pay; 0 while that is unknown."""


class StepBudget:
    """The rate that passes must earn, the least probability of a node, and whether to draft at all.

    *Rate.* In the long run most tokens a second are written if every second that drafts add to a pass earns as many
    tokens as seconds earn on average: what is gained by a slower pass is lost by the passes that it delays. The average
    is that of the latest steps, drafting included, and never less than what plain passes earn.

    *Rests.* What a node is worth and what a wider pass costs is estimated for every step; what came of it is known
    afterwards. Where drafts have lost more time than they may (:class:`~speculant_graph.budget.allowance.Allowance`),
    drafting included, steps go without.
    """

    def __init__(self, cost: PassCost, *, is_cost_known: bool = True) -> None:
        """Begin without experience.

        Args:
            cost: what passes cost; learns from those that happen if it can.
            is_cost_known: whether it knows that already; else every other of the first steps is not drafted for, so
                that it sees both kinds of passes.
        """
        self.cost = cost
        """What passes cost."""
        self._allowance = Allowance(_FIRST_PASSES)
        self._tokens = self._time = 1.0  # of the latest steps, a row; in plain passes
        self._size = 0.0  # nodes that were kept lately
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

    def prices(self, num_rows: int, most_nodes: int) -> StepPrices:
        """Return what holds for the next step.

        A node is kept if it is expected to bring what the seconds that it adds must earn. These are those of drafting
        it, and of the pass at least what a node costs if the pass grows from its usual size to any that is likely: on a
        mixture of experts many nodes together may pay where few do not.

        Args:
            num_rows: of the batch.
            most_nodes: of all its drafts.
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
        """Take a pass that nothing was drafted for."""
        if self._turns_left:  # in order with the others, as the first passes of an engine are no measure
            self.observe(num_rows, num_rows, num_rows, pass_s, 0.0, 0)
        else:
            self.cost.observe(num_rows, num_rows, pass_s)
            self._allowance.add_pass(1.0)

    def observe(
        self, num_rows: int, num_tokens: int, num_new: int, pass_s: float, draft_s: float, num_drafted: int
    ) -> None:
        """Take what came of a step that was drafted for.

        Args:
            num_rows: sequences of its pass.
            num_tokens: tokens of the pass, all of them together.
            num_new: tokens that it wrote.
            pass_s: seconds of the pass, positive.
            draft_s: seconds until its drafts were there.
            num_drafted: nodes that were drafted, those that were not kept included.
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
        relative = np.empty(len(rows))  # passes in plain ones of the machine's present pace, whatever else it does
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
        time = float(table[num_tokens] / table[num_rows]) * (1.0 + min(_MOST_DRAFTING, draft_share))
        self._allowance.add_pass(1.0)
        self._allowance.add(written - time)


class DraftingCost:
    """Seconds of drafting: a part that is the same for every step, and one for every node; learned."""

    def __init__(self) -> None:
        """Begin without experience."""
        self._weight = self._nodes = self._seconds = self._squares = self._products = 0.0

    @property
    def node_s(self) -> float:
        """Seconds that a node more takes; 0 while that is unknown."""
        if not self._weight:
            return 0.0
        variance = self._squares * self._weight - self._nodes**2
        covariance = self._products * self._weight - self._nodes * self._seconds
        return max(0.0, covariance / variance) if variance > 0.0 else 0.0

    def observe(self, num_nodes: NDArray[np.float64], seconds: NDArray[np.float64]) -> None:
        """Take how long the drafting of steps took; a moment of other work counts for a few steps at most.

        Args:
            num_nodes: per step, the latest one last.
            seconds: per step.
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
    """Return what everything before so many steps weighs after them, and what each of them weighs."""
    return _MEMORY**num_steps, _MEMORY ** np.arange(num_steps)[::-1]
